// shards: reads the shard format.  HDF5 is asked once where the pixels lie; each image is one plain pread, checked by its own CRC.
#include "storage/shards.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/in_order.hpp"
#include "storage/descriptor.hpp"
#include "storage/hdf5.hpp"
#include "storage/sealed_file.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t opening_threads = 16;

struct ShardName {
  std::string split;
  int index = 0, count = 0;
};

/// Nothing for a file that is no shard by its name.
std::optional<ShardName> parse_name(std::string_view file) {
  if (!file.ends_with(".h5")) return {};
  file.remove_suffix(3);
  const std::size_t of = file.rfind("-of-"), dash = of == std::string_view::npos || of == 0 ? of : file.rfind('-', of - 1);
  if (dash == std::string_view::npos || dash == 0 || dash >= of) return {};
  const auto number = [](std::string_view digits, int& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return digits.size() >= 5 && digits[0] != '-' && error == std::errc() && end == digits.data() + digits.size();
  };
  ShardName name{std::string(file.substr(0, dash))};
  if (!number(file.substr(dash + 1, of - dash - 1), name.index) || !number(file.substr(of + 4), name.count)) return {};
  return name.index < name.count ? std::optional(name) : std::nullopt;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::error_code error;
  require(fs::exists(folder, error), folder, ": there is no such folder. Check data.path, or make it with lockstep-convert.");
  require(fs::is_directory(folder, error), folder, ": this is no folder. data.path must name the folder that holds the shards.");
  std::vector<std::string> names;
  fs::directory_iterator it(folder, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) names.push_back(it->path().filename().string());
  require(!error, folder, ": cannot be read: ", error.message(), ".");
  std::ranges::sort(names);
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// What one shard says of itself.
struct ShardContent {
  ShardHeader header;
  std::int64_t index = 0, count = 0;
  std::vector<ImageRecord> records;
};

/// Of a file whose seal was verified: the header and where each image lies; no value is believed that would lead outside the pixels.
ShardContent read_shard(const std::string& path, int shard, SealedBytes sealed = SealedBytes()) {
  const H5File file = H5File::open(path, std::move(sealed));
  require(file.has_attribute("format") && file.text_attribute("format") == shard_format, path, ": is no shard of images. data.path must hold what lockstep-convert made.");
  const std::int64_t version = file.integer_attribute("version");
  require(version == shard_version, path, ": is a shard of version ", version, "; this lockstep reads version ", shard_version, ". Convert again, or use the lockstep that made it.");
  ShardContent content;
  ShardHeader& h = content.header;
  h.split = file.text_attribute("split"), h.classes = file.texts_attribute("classes");
  h.height = file.integer_attribute("height"), h.width = file.integer_attribute("width");
  h.fit = file.text_attribute("fit"), h.rotate = file.text_attribute("rotate"), h.size = file.integer_attribute("size");
  h.mean = file.numbers_attribute("mean"), h.std = file.numbers_attribute("std");
  h.split_images = file.integer_attribute("split_images"), h.source = file.text_attribute("source");
  content.index = file.integer_attribute("shard"), content.count = file.integer_attribute("shards");
  const std::int64_t images = file.integer_attribute("images");
  const bool is_one_size = h.height > 0;
  for (const auto* of : {&h.mean, &h.std})
    require((of->empty() || of->size() == 3) && std::ranges::all_of(*of, [](double value) { return std::isfinite(value); }), path, ": its mean and std are not three numbers each. Convert again.");
  require(h.height >= 0 && h.width >= 0, path, ": its images are ", h.height, " x ", h.width, ". Convert again.");
  std::error_code unknown;
  const auto file_bytes = static_cast<std::int64_t>(fs::file_size(path, unknown));

  const H5DatasetInfo pixels = file.info(is_one_size ? "/images" : "/pixels");
  const std::vector<std::int64_t> shape = is_one_size ? std::vector<std::int64_t>{images, h.height, h.width, 3} : pixels.shape;
  require(images >= 0 && images <= file_bytes && pixels.type == H5Type::u8 && pixels.shape == shape && shape.size() == (is_one_size ? 4u : 1u) && h.height <= shard_largest_side && h.width <= shard_largest_side,
          path, ": its pixels are not what its header says. Convert again.");
  require(file.info("/labels").shape == std::vector<std::int64_t>{images}, path, ": has not one label an image. Convert again.");
  const auto n = static_cast<std::size_t>(images);
  std::vector<std::int32_t> labels(n), heights(n, static_cast<std::int32_t>(h.height)), widths(n, static_cast<std::int32_t>(h.width));
  std::vector<std::uint32_t> crcs(n);
  std::vector<std::int64_t> offsets(n);
  file.read("/labels", H5Type::i32, labels.data(), n);
  file.read("/crc32c", H5Type::u32, crcs.data(), n);
  std::int64_t bytes = 1;
  for (const std::int64_t extent : shape) require(extent == 0 || bytes <= (std::int64_t{1} << 62) / extent, path, ": its pixels are too many."), bytes *= extent;
  if (is_one_size) {
    for (std::size_t i = 0; i < n; ++i) offsets[i] = static_cast<std::int64_t>(i) * h.height * h.width * 3;
  } else {
    file.read("/offsets", H5Type::i64, offsets.data(), n);
    file.read("/heights", H5Type::i32, heights.data(), n);
    file.read("/widths", H5Type::i32, widths.data(), n);
  }
  const std::int64_t begin = std::max<std::int64_t>(pixels.file_offset, 0);
  require(bytes == 0 || (pixels.file_offset >= 0 && pixels.file_offset <= file_bytes && bytes <= file_bytes - begin), path, ": its pixels reach past its end. Convert again.");
  content.records.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    const ImageRecord record{shard, begin + offsets[i], heights[i], widths[i], labels[i], crcs[i]};
    require(heights[i] > 0 && widths[i] > 0 && heights[i] <= shard_largest_side && widths[i] <= shard_largest_side && offsets[i] >= 0 && record.bytes() <= bytes && offsets[i] <= bytes - record.bytes(),
            path, ": image ", i, " lies outside its pixels. Convert again.");
    require(labels[i] >= 0 && std::cmp_less(labels[i], h.classes.size()), path, ": image ", i, " has label ", labels[i], ", but there are ", h.classes.size(), " classes. Convert again.");
    content.records.push_back(record);
  }
  return content;
}

/// Which attribute of two shards of one split differs; empty when none does.
std::string different_attribute(const ShardHeader& a, const ShardHeader& b) {
  if (a.classes != b.classes) return "classes";
  if (a.height != b.height || a.width != b.width) return "image height and width";
  if (a.fit != b.fit || a.size != b.size || a.rotate != b.rotate) return "fit, size and rotate";
  if (a.mean != b.mean || a.std != b.std) return "mean and std";
  if (a.split_images != b.split_images) return "count of the split's images";
  return a.source != b.source ? "source" : "";
}

/// "3, 7-9" of {3, 7, 8, 9}.
std::string ranges(const std::vector<std::size_t>& numbers) {
  constexpr std::size_t shown = 12;
  std::string text;
  std::size_t count = 0;
  for (std::size_t i = 0; i < numbers.size(); ++count) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (count == shown) return text + ", ...";
    text += text_of(text.empty() ? "" : ", ", numbers[i]);
    if (last > i) text += text_of("-", numbers[last]);
    i = last + 1;
  }
  return text;
}

/// What is wrong with one image, read into `pixels`; empty when nothing is.
std::string read_image(const Descriptor& file, const ImageRecord& record, std::uint8_t* pixels) {
  const std::int64_t got = read_at(file, pixels, record.bytes(), record.offset);
  if (got < 0) return "cannot be read: " + reason();
  if (got < record.bytes()) return "lies past the end of the file, which became shorter";
  return crc32c(pixels, static_cast<std::size_t>(got)) == record.crc ? "" : "differs from its checksum";
}

/// Of a shard whose seal holds: which images do not, in words; empty when all do.
std::string damaged_images(const std::string& path, const std::vector<ImageRecord>& records) {
  const Descriptor file(path, O_RDONLY);
  if (!file) return "cannot be opened: " + reason();
  std::vector<std::size_t> damaged;
  std::vector<std::uint8_t> pixels;
  for (std::size_t i = 0; i < records.size(); ++i) {
    pixels.resize(static_cast<std::size_t>(records[i].bytes()));
    if (!read_image(file, records[i], pixels.data()).empty()) damaged.push_back(i);
  }
  if (damaged.empty()) return "";
  const std::vector<std::string> names = H5File::open(path).read_texts("/names");
  return text_of(damaged.size(), " of ", records.size(), " images differ from their checksums, the first is image ", damaged[0], " (", names.at(damaged[0]), ")",
                 damaged.size() > 1 ? "; images " + ranges(damaged) : "");
}

}  // namespace

struct Dataset::State {
  std::string folder, mend;
  ShardHeader header;
  std::vector<std::string> files;
  std::vector<std::int64_t> first;            // id of each shard's first image
  std::vector<ImageRecord> records;
  std::int64_t max_image_bytes = 0;

  // Open files, the least recently used closed first: a data set may have more shards than a process may open.
  std::mutex mutex;
  std::vector<std::shared_ptr<Descriptor>> open;
  std::vector<std::uint64_t> used;
  std::uint64_t clock = 0;
  std::size_t open_count = 0, open_limit = 16;

  std::shared_ptr<Descriptor> descriptor(std::size_t shard) {
    const std::lock_guard lock(mutex);
    used[shard] = ++clock;
    if (open[shard]) return open[shard];
    while (open_count >= open_limit) close_oldest();
    auto opened = std::make_shared<Descriptor>(files[shard], O_RDONLY);
    while (!*opened && (errno == EMFILE || errno == ENFILE) && open_count > 0) {   // others in this process hold the rest
      close_oldest();
      opened = std::make_shared<Descriptor>(files[shard], O_RDONLY);
    }
    if (!*opened) fail(files[shard], ": cannot be opened: ", reason(), ". It was there when the run started.");
    ++open_count;
    return open[shard] = std::move(opened);
  }
  void close_oldest() {   // a thread that still reads from it keeps it open a little longer
    std::size_t oldest = open.size();
    for (std::size_t i = 0; i < open.size(); ++i)
      if (open[i] && (oldest == open.size() || used[i] < used[oldest])) oldest = i;
    open[oldest].reset();
    --open_count;
  }
};

Dataset::Dataset(const std::string& folder, const std::string& split, std::string mend) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.folder = folder, s.mend = std::move(mend);
  const std::vector<std::string> names = shard_files(folder, split);
  const auto path_of = [&](std::int64_t shard) { return (fs::path(folder) / names[static_cast<std::size_t>(shard)]).string(); };
  // Side by side, and each read once: of thousands of shards on a network file system each read is a round trip, and libhdf5 makes them one after another.
  const auto content_of = [&](std::int64_t shard) { return read_shard(path_of(shard), static_cast<int>(shard), read_sealed(path_of(shard))); };
  in_order(std::ssize(names), static_cast<int>(std::min<std::size_t>(names.size(), opening_threads)), content_of, [&](std::int64_t shard, const ShardContent& content) {
    const std::string &name = names[static_cast<std::size_t>(shard)], path = path_of(shard);
    const std::optional<ShardName> said = parse_name(name);
    require(content.header.split == split && content.index == said->index && content.count == said->count, path, ": was made as ",
            shard_name(content.header.split, static_cast<int>(content.index), static_cast<int>(content.count)), " and renamed. Give it back its name.");
    if (s.files.empty()) s.header = content.header, s.records.reserve((content.records.size() + 1) * names.size());   // shards are alike; what a header says of others is not believed
    const std::string different = different_attribute(s.header, content.header);
    require(different.empty(), path, ": its ", different, " differ from those of ", s.files.empty() ? path : s.files[0], ". The folder mixes conversions: convert again into an empty one.");
    s.files.push_back(path);
    s.first.push_back(static_cast<std::int64_t>(s.records.size()));
    s.records.insert(s.records.end(), content.records.begin(), content.records.end());
  });
  require(size() == s.header.split_images, folder, ": the shards of \"", split, "\" hold ", size(), " images; their headers say ", s.header.split_images, ". Convert again.");
  require(size() > 0, folder, ": the split \"", split, "\" has no images.");
  for (const ImageRecord& record : s.records) s.max_image_bytes = std::max(s.max_image_bytes, record.bytes());
  s.open.resize(s.files.size()), s.used.resize(s.files.size());
  if (rlimit limit{}; ::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    s.open_limit = static_cast<std::size_t>(std::clamp<rlim_t>(limit.rlim_cur / 8, 2, 512));   // most of the limit is for MPI and the second split
}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;
const ShardHeader& Dataset::header() const& { return state_->header; }
std::int64_t Dataset::size() const { return static_cast<std::int64_t>(state_->records.size()); }
std::span<const std::string> Dataset::files() const& { return state_->files; }
std::span<const ImageRecord> Dataset::records() const& { return state_->records; }
std::int64_t Dataset::max_image_bytes() const { return state_->max_image_bytes; }

void Dataset::read(std::int64_t id, std::uint8_t* pixels) const {
  const ImageRecord& record = state_->records.at(static_cast<std::size_t>(id));
  const auto shard = static_cast<std::size_t>(record.shard);
  const std::string wrong = read_image(*state_->descriptor(shard), record, pixels);
  if (wrong.empty()) return;
  std::string name = "its name cannot be read";
  try {
    name = name_of(id);
  } catch (const Error&) {   // the first fault is the one to tell
  }
  fail(state_->files[shard], ": image ", id - state_->first[shard], " (", name, ") ", wrong, ". ", state_->mend);
}

std::string Dataset::name_of(std::int64_t id) const {
  const int shard = state_->records.at(static_cast<std::size_t>(id)).shard;
  return names_of(shard).at(static_cast<std::size_t>(id - state_->first[static_cast<std::size_t>(shard)]));
}

std::vector<std::string> Dataset::names_of(int shard) const {
  const std::string& file = state_->files.at(static_cast<std::size_t>(shard));
  verify_seal(file);
  return H5File::open(file).read_texts("/names");
}

std::vector<std::string> splits_in(const std::string& folder) {
  std::vector<std::string> splits;
  for (const std::string& file : files_in(folder))
    if (const auto name = parse_name(file)) splits.push_back(name->split);
  std::ranges::sort(splits);
  const auto repeated = std::ranges::unique(splits);
  splits.erase(repeated.begin(), repeated.end());
  return splits;
}

std::vector<std::string> shard_files(const std::string& folder, const std::string& split) {
  std::map<int, std::set<int>> found;       // count in the name -> which indices are there; no memory for those that are not
  std::string partial;
  for (const std::string& file : files_in(folder)) {
    if (const auto name = parse_name(file); name && name->split == split) {
      found[name->count].insert(name->index);
    }
    if (file.ends_with(".partial"))
      if (const auto name = parse_name(std::string_view(file).substr(0, file.size() - 8)); name && name->split == split) partial = file;
  }
  const std::string unfinished = partial.empty() ? "" : " A conversion did not finish (" + partial + "): run lockstep-convert again.";
  if (found.empty()) {
    const std::vector<std::string> splits = splits_in(folder);
    if (splits.empty()) fail(folder, ": holds no shards (", shard_name(split, 0, 16), ", ...).", unfinished.empty() ? " Make them with lockstep-convert, or mend data.path." : unfinished);
    fail(folder, ": has no split \"", split, "\"; it has ", joined(splits), ".", unfinished.empty() ? did_you_mean(split, splits) + " Set data.train_split or data.eval_split." : unfinished);
  }
  if (found.size() > 1) {
    std::vector<std::string> sets;
    for (const auto& [count, indices] : found) sets.push_back(text_of(indices.size(), " of *", shard_name(split, 0, count).substr(split.size() + 6)));
    fail(folder, ": holds shards of more than one conversion of \"", split, "\": ", joined(sets), ". Keep one set and remove the others.");
  }
  const auto& [count, indices] = *found.begin();
  if (const auto missing = count - std::ssize(indices); missing > 0) {
    int index = 0;
    while (indices.contains(index)) ++index;
    const std::string first = shard_name(split, index, count);
    fail(folder, ": ", first, missing > 1 ? text_of(" and ", missing - 1, " more of ", count, " shards are missing.") : " is missing.",
         unfinished.empty() ? " Copy the whole folder, on every node, or run lockstep-convert again." : unfinished);
  }
  std::vector<std::string> names;
  for (const int index : indices) names.push_back(shard_name(split, index, count));
  return names;
}

std::string shard_name(const std::string& split, int index, int count) {
  const auto five = [](int number) {
    const std::string digits = std::to_string(number);
    return std::string(5 - std::min<std::size_t>(5, digits.size()), '0') + digits;
  };
  return split + "-" + five(index) + "-of-" + five(count) + ".h5";
}

std::string shard_damage(const std::string& path) {
  if (std::string damage = damage_of(path); !damage.empty()) return damage;
  try {
    return damaged_images(path, read_shard(path, 0).records);
  } catch (const Error& error) {
    const std::string words = error.what();
    return words.starts_with(path + ": ") ? words.substr(path.size() + 2) : words;
  }
}

std::string inspect_shard(const std::string& path) {
  verify_seal(path);
  const ShardContent content = read_shard(path, 0);
  const ShardHeader& h = content.header;
  const std::string damage = damaged_images(path, content.records);
  require(damage.empty(), path, ": ", damage, ". Use a whole copy of this shard, or convert again.");
  std::vector<std::int64_t> images_of(h.classes.size());
  std::int64_t bytes = 0;
  for (const ImageRecord& record : content.records) images_of[static_cast<std::size_t>(record.label)] += 1, bytes += record.bytes();
  const auto numbers = [](const std::vector<double>& values) {
    std::string text;
    for (const double value : values) text += text_of(text.empty() ? "" : ", ", value);
    return text;
  };
  std::string text = text_of(path, "\nshard      ", content.index + 1, " of ", content.count, " of split \"", h.split, "\", from ", h.source, " (fit ", h.fit, ", size ", h.size,
                             ", rotate ", h.rotate, ")\nimages     ", content.records.size(), " of the split's ", h.split_images, ", ",
                             h.height > 0 ? text_of(h.height, " x ", h.width, " pixels") : "of their own sizes", ", ", bytes, " bytes\nmean, std  ", numbers(h.mean), "; ",
                             numbers(h.std), "\nclasses    ", h.classes.size(), "\n");
  for (std::size_t i = 0; i < h.classes.size(); ++i) text += text_of("  ", i, "  ", on_one_line(h.classes[i]), "  ", images_of[i], "\n");
  return text + "checksums  the seal and all images hold\n";
}

}  // namespace lockstep
