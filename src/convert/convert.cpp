// Images are made on all cores and taken in order by one thread, which appends them to the shards of the split.
// A broken image is passed over; its shard has one image less.  Mean, deviation and counts are known at the end: then every shard is
// finished and published, train first.  Memory: a few images a thread, and of each image its name, label, size and checksum.
#include "convert/convert.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <thread>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/in_order.hpp"
#include "convert/progress.hpp"
#include "convert/report.hpp"
#include "storage/sealed_file.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t shard_bytes = std::int64_t{1} << 30;

/// Exact sums over pixels, so that neither order nor threads change the mean.
struct ChannelSums {
  std::array<std::uint64_t, 3> sum{}, square{};
  std::uint64_t pixels = 0;
  void add(std::span<const std::uint8_t> rgb) {
    std::array<std::uint64_t, 3> s{}, q{};
    for (std::size_t i = 0; i < rgb.size(); i += 3)
      for (std::size_t c = 0; c < 3; ++c) s[c] += rgb[i + c], q[c] += std::uint32_t{rgb[i + c]} * rgb[i + c];
    add({s, q, rgb.size() / 3});
  }
  void add(const ChannelSums& other) {
    for (std::size_t c = 0; c < 3; ++c) sum[c] += other.sum[c], square[c] += other.square[c];
    pixels += other.pixels;
  }
  double mean(std::size_t c) const { return static_cast<double>(sum[c]) / static_cast<double>(pixels) / 255; }
  double std(std::size_t c) const {
    const double m = mean(c);
    return std::sqrt(std::max(0.0, static_cast<double>(square[c]) / static_cast<double>(pixels) / (255.0 * 255.0) - m * m));
  }
};

struct Made {
  DecodedImage image;
  ChannelSums sums;
  std::string broken;                                               // why there is no image
};

struct WrittenSplit {
  std::vector<ShardWriter> shards;
  ChannelSums sums;
  std::int64_t images = 0, broken = 0, bytes = 0;
};

/// All that decides the bytes of the shards, one "key = value" a line.
std::string request_of(Source& source, const std::string& input, const Listing& listing, const ConvertOptions& options) {
  std::string text = text_of("source = ", source.name(), "\n");
  if (source.has_input()) text += text_of("input = ", fs::weakly_canonical(input).string(), "\n");
  for (const SourceOption& option : source.options())
    if (const std::string value = std::visit([](const auto* held) { return text_of(*held); }, option.value); option.unwritten.empty() || value != option.unwritten)
      text += text_of(option.name, " = ", value, "\n");
  std::uint32_t crc = 0;
  for (const SourceSplit& split : listing.splits)
    for (const Item& item : split.items) {
      const std::string line = text_of(split.name, '\t', item.label, '\t', item.name, '\n');
      crc = crc32c(line.data(), line.size(), crc);
    }
  return text + text_of("seed = ", options.seed, "\nshards = ", options.shards, "\nimages = ", std::hex, crc, " (checksum of names and labels)\n");
}

/// The first line that one of them has otherwise than the other, or alone.
std::string difference(const std::string& before, const std::string& now) {
  const auto line_of = [](const std::string& text, const std::string& key) {   // empty: there is none
    const std::size_t at = ("\n" + text).find("\n" + key + " = ");
    return at == std::string::npos ? std::string() : text.substr(at, text.find('\n', at) - at);
  };
  std::istringstream lines(now + before);
  for (std::string line; std::getline(lines, line);) {
    const std::string key = line.substr(0, line.find(" = ")), was = line_of(before, key), is = line_of(now, key);
    if (was == is) continue;
    if (was.empty()) return text_of("was made without \"", is, "\"");
    return text_of("was made with \"", was, "\"", is.empty() ? "" : text_of(", not \"", is, "\""));
  }
  return "was made with other options";
}

bool is_shard(const std::string& file) { return file.find("-of-") != std::string::npos && (file.ends_with(".h5") || file.ends_with(".h5.partial")); }

std::vector<fs::path> shards_in(const std::string& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_shard(entry.path().filename().string())) found.push_back(entry.path());
  return found;
}

/// Whether OUTPUT already holds what is asked.  Else it is made ready: what a killed conversion left is removed.
bool is_there(const Report& report, const std::string& request, const Listing& listing, const ConvertOptions& options) {
  const bool is_finished = report.is_earlier_finished();
  const std::vector<fs::path> left = shards_in(options.output);
  if (report.earlier_request().empty())
    require(left.empty() || options.overwrite, options.output, ": holds shards of unknown origin. Choose another OUTPUT, or --overwrite");
  else if (is_finished && !options.overwrite) {
    require(report.earlier_request() == request, options.output, ": ", difference(report.earlier_request(), request),
            ". Choose another OUTPUT, or --overwrite");
    try {
      for (const SourceSplit& split : listing.splits) Dataset(options.output, split.name);
      return true;
    } catch (const Error& error) {
      std::cout << error.what() << "\nconverts again" << std::endl;
    }
  } else if (!is_finished) {
    std::cout << options.output << ": an earlier conversion was stopped; starts again" << std::endl;
  }
  for (const fs::path& path : left) fs::remove(path);
  return false;
}

std::vector<std::size_t> order_of(const SourceSplit& split, std::int64_t seed) {
  std::vector<std::size_t> order(split.items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (split.is_shuffled)
    for (std::size_t i = order.size(); i > 1; --i) {                // Fisher and Yates
      const Bits4 bits = random_bits(static_cast<std::uint64_t>(seed), Purpose::convert_order, 0, i);
      std::swap(order[i - 1], order[below(i, bits[0], bits[1])]);
    }
  return order;
}

/// Announces sizes, asks for space; the result is the number of shards of each split.
std::vector<int> plan_shards(const Source& source, const Listing& listing, const ConvertOptions& options) {
  std::int64_t total = 0, files = 0;
  std::vector<int> shards;
  for (std::size_t split = 0; split < listing.splits.size(); ++split) {
    const std::int64_t bytes = source.predicted_bytes(listing, split), images = std::ssize(listing.splits[split].items);
    require(options.shards >= 0 && options.shards <= images, "--shards ", options.shards, " must be from 0 to the ", images, " images of split ", listing.splits[split].name);
    shards.push_back(static_cast<int>(options.shards > 0 ? options.shards : std::clamp<std::int64_t>((bytes + shard_bytes - 1) / shard_bytes, 1, images)));
    total += bytes + 64 * images, files += shards.back();
    std::cout << listing.splits[split].name << ": " << images << " images, " << listing.header.classes.size() << " classes, about " << size_text(bytes) << " in "
              << counted(shards.back(), "shard") << std::endl;
  }
  const std::int64_t free = free_bytes(options.output);
  require(total <= free || options.force, options.output, ": has ", size_text(free), " free, but about ", size_text(total), " will be written. Free some, or --force");
  rlimit open_files{};                                              // every shard stays open to the end
  if (::getrlimit(RLIMIT_NOFILE, &open_files) == 0) {
    open_files.rlim_cur = open_files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &open_files);
    require(open_files.rlim_max == RLIM_INFINITY || static_cast<rlim_t>(2 * files + 64) < open_files.rlim_max, files,
            " shards are more than this process may open (ulimit -n ", open_files.rlim_max, "). Give a smaller --shards");
  }
  return shards;
}

WrittenSplit write_split(const Source& source, const Listing& listing, std::size_t split, int shards, const ConvertOptions& options, Report& report) {
  const SourceSplit& from = listing.splits[split];
  const std::vector<std::size_t> order = order_of(from, options.seed);
  const std::int64_t count = std::ssize(order);
  const int threads = options.threads > 0 ? static_cast<int>(options.threads) : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  ShardHeader header = listing.header;
  header.split = from.name;
  WrittenSplit out;
  ProgressLine progress(from.name, count);

  const auto make = [&](std::int64_t i) {
    Made made;
    try {
      made.image = source.image(listing, split, order[static_cast<std::size_t>(i)]);
      made.sums.add(made.image.pixels);
    } catch (const Error& error) {
      if (error.code() != exit_bad_input) throw;
      made.broken = error.what();
    }
    return made;
  };
  const auto take = [&](std::int64_t i, const Made& made) {
    const Item& item = from.items[order[static_cast<std::size_t>(i)]];
    while (std::ssize(out.shards) * count / shards <= i) {          // shard s holds images [s * count / shards, (s + 1) * count / shards)
      const std::int64_t s = std::ssize(out.shards), images = (s + 1) * count / shards - s * count / shards;
      out.shards.emplace_back(options.output, header, static_cast<int>(s), shards, images, 3 * images * header.height * header.width);
    }
    progress.advance();
    if (!made.broken.empty()) {
      report.add("left out: " + made.broken);
      require(!options.strict, made.broken, " (--strict)");
      if (++out.broken <= 10) std::cerr << "lockstep-convert: left out: " << made.broken << std::endl;
      if (out.broken == 10) std::cerr << "lockstep-convert: further ones are named in " << report.path() << " only" << std::endl;
      return;
    }
    out.shards.back().append({made.image.pixels, made.image.height, made.image.width, item.label, item.name});
    out.sums.add(made.sums);
    out.images += 1, out.bytes += std::ssize(made.image.pixels);
  };
  in_order(count, threads, make, take);
  require(out.images > 0, "split ", from.name, ": none of its ", count, " images can be read; ", report.path(), " says why");
  return out;
}

}  // namespace

void convert(Source& source, const std::string& input, const ConvertOptions& options) {
  const Listing listing = source.open(input, static_cast<std::uint64_t>(options.seed));
  const std::string request = request_of(source, input, listing, options);
  Report report(options.output);
  if (is_there(report, request, listing, options)) {
    std::cout << options.output << ": already converted" << std::endl;
    return;
  }
  report.begin(request);
  for (const std::string& remark : listing.remarks) {
    report.add("note: " + remark);
    std::cout << "note: " << remark << std::endl;
  }

  const std::vector<int> shards = plan_shards(source, listing, options);
  std::vector<WrittenSplit> written;
  for (std::size_t split = 0; split < listing.splits.size(); ++split) written.push_back(write_split(source, listing, split, shards[split], options, report));

  const ChannelSums& sums = written[0].sums;                        // of train; of val where that is all there is
  const std::array mean = {sums.mean(0), sums.mean(1), sums.mean(2)}, std = {sums.std(0), sums.std(1), sums.std(2)};
  std::int64_t broken = 0;
  for (std::size_t split = 0; split < written.size(); ++split) {
    WrittenSplit& w = written[split];
    for (ShardWriter& shard : w.shards) shard.finish(mean, std, w.images);
    const std::string line = text_of(listing.splits[split].name, ": ", w.images, " images, ", size_text(w.bytes), " in ", counted(std::ssize(w.shards), "shard"),
                                     w.broken > 0 ? text_of(", ", w.broken, " left out") : "");
    report.add("written: " + line);
    std::cout << options.output << ": " << line << std::endl;
    broken += w.broken;
  }
  report.add(text_of("mean = ", mean[0], " ", mean[1], " ", mean[2], "\nstd = ", std[0], " ", std[1], " ", std[2]));
  report.finish();
  if (broken > 0) std::cout << counted(broken, "image") << (broken == 1 ? " was" : " were") << " broken and left out: " << report.path() << std::endl;
}

}  // namespace lockstep
