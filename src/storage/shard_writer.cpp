// shard_writer: one shard, written aside and published whole.
// Pixels go by plain pwrite to the place where HDF5 will put a large dataset; how many they are is known at the end, and only then
// HDF5 is told of them (and writes nothing there).  So broken images leave no hole, and images of own sizes need no second pass.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "storage/descriptor.hpp"
#include "storage/hdf5.hpp"
#include "storage/sealed_file.hpp"
#include "storage/shards.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t alignment = 1 << 20;               // of the pixels; more than all else that lies before them
constexpr std::size_t write_block_bytes = 4 << 20;        // what fits in one block is written when HDF5 has said where

}  // namespace

struct ShardWriter::State {
  std::string path, partial;
  ShardHeader header;
  int index = 0, count = 0;
  std::optional<H5File> file;
  std::optional<Descriptor> descriptor;
  std::int64_t pixels_begin = alignment, appended_bytes = 0;   // of pixels, buffered or written
  std::vector<std::uint8_t> buffer;
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> labels, heights, widths;
  std::vector<std::uint32_t> crcs;
  std::vector<std::string> names;

  ~State() {
    file.reset(), descriptor.reset();
    if (!partial.empty()) ::unlink(partial.c_str());
  }
  bool is_one_size() const { return header.height > 0; }
  void flush() {
    const auto bytes = static_cast<std::int64_t>(buffer.size());
    if (!write_at(*descriptor, buffer.data(), bytes, pixels_begin + appended_bytes - bytes)) fail(partial, ": cannot be written: ", reason(), ". Free space, or write elsewhere.");
    buffer.clear();
  }
};

ShardWriter::ShardWriter(const std::string& folder, const ShardHeader& header, int index, int count, std::int64_t images, std::int64_t pixel_bytes)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  if (s.header = header; s.is_one_size() && pixel_bytes != images * header.height * header.width * 3)
    fail_with(exit_internal, "ShardWriter: ", images, " images of ", header.height, " x ", header.width, " are not ", pixel_bytes, " bytes.");
  s.index = index, s.count = count;
  s.path = (fs::path(folder) / shard_name(header.split, index, count)).string();
  std::error_code error;
  fs::create_directories(folder, error);
  require(!error, folder, ": this folder cannot be made: ", error.message(), ".");
  ::unlink((s.path + ".partial").c_str());   // of a conversion that was killed
  s.file = H5File::create(s.path + ".partial", alignment);
  s.partial = s.path + ".partial";

  s.descriptor.emplace(s.partial, O_WRONLY);
  if (!*s.descriptor) fail(s.partial, ": cannot be opened: ", reason(), ".");
  // Where the file system can reserve space, a full disk is known now and not after an hour.
  if (pixel_bytes > 0 && ::fallocate(s.descriptor->fd, FALLOC_FL_KEEP_SIZE, alignment, pixel_bytes) != 0)
    if (errno == ENOSPC || errno == EDQUOT) fail(s.partial, ": there is no room for its ", pixel_bytes, " bytes: ", reason(), ". Free space, or write elsewhere.");
}

ShardWriter::~ShardWriter() = default;
ShardWriter::ShardWriter(ShardWriter&&) noexcept = default;

void ShardWriter::append(const ShardImage& image) {
  State& s = *state_;
  const auto bytes = static_cast<std::int64_t>(image.pixels.size());
  const auto is_side = [](std::int64_t side) { return side > 0 && side <= shard_largest_side; };
  const bool fits = is_side(image.height) && is_side(image.width) && bytes == 3 * image.height * image.width &&
                    (!s.is_one_size() || (image.height == s.header.height && image.width == s.header.width));
  if (!fits || image.label < 0 || std::cmp_greater_equal(image.label, s.header.classes.size()))
    fail_with(exit_internal, s.partial, ": image ", s.labels.size(), " (", image.name, ", ", image.height, " x ", image.width, ", label ", image.label, ") does not fit this shard.");
  s.offsets.push_back(s.appended_bytes);
  s.heights.push_back(static_cast<std::int32_t>(image.height)), s.widths.push_back(static_cast<std::int32_t>(image.width));
  s.labels.push_back(image.label), s.names.push_back(image.name);
  s.crcs.push_back(crc32c(image.pixels.data(), image.pixels.size()));
  s.buffer.insert(s.buffer.end(), image.pixels.begin(), image.pixels.end());
  s.appended_bytes += bytes;
  if (s.buffer.size() >= write_block_bytes) s.flush();
}

void ShardWriter::finish(std::span<const double> mean, std::span<const double> std, std::int64_t split_images) {
  State& s = *state_;
  const std::int64_t n = std::ssize(s.labels);
  const ShardHeader& header = s.header;
  const std::vector<std::int64_t> shape = s.is_one_size() ? std::vector<std::int64_t>{n, header.height, header.width, 3} : std::vector<std::int64_t>{s.appended_bytes};
  const char* dataset = s.is_one_size() ? "/images" : "/pixels";
  s.file->write(dataset, H5Type::u8, shape, nullptr);
  const std::int64_t begin = std::max<std::int64_t>(s.file->info(dataset).file_offset, 0);
  if (const bool is_begun = std::cmp_less(s.buffer.size(), s.appended_bytes); is_begun && begin != s.pixels_begin)
    fail_with(exit_internal, s.partial, ": HDF5 put the pixels at ", begin, " and not at ", s.pixels_begin, ".");
  s.pixels_begin = begin;
  s.flush();
  s.file->set_attribute("format", std::string(shard_format));
  s.file->set_attribute("version", shard_version);
  s.file->set_attribute("split", header.split);
  s.file->set_attribute("classes", header.classes);
  s.file->set_attribute("height", header.height);
  s.file->set_attribute("width", header.width);
  s.file->set_attribute("fit", header.fit);
  s.file->set_attribute("rotate", header.rotate);
  s.file->set_attribute("size", header.size);
  s.file->set_attribute("source", header.source);
  s.file->set_attribute("mean", mean);
  s.file->set_attribute("std", std);
  s.file->set_attribute("split_images", split_images < 0 ? header.split_images : split_images);
  s.file->set_attribute("images", n);
  s.file->set_attribute("shard", std::int64_t{s.index});
  s.file->set_attribute("shards", std::int64_t{s.count});
  s.file->write("/labels", H5Type::i32, {&n, 1}, s.labels.data());
  s.file->write("/crc32c", H5Type::u32, {&n, 1}, s.crcs.data());
  if (!s.is_one_size()) {
    s.file->write("/offsets", H5Type::i64, {&n, 1}, s.offsets.data());
    s.file->write("/heights", H5Type::i32, {&n, 1}, s.heights.data());
    s.file->write("/widths", H5Type::i32, {&n, 1}, s.widths.data());
  }
  s.file->write_texts("/names", s.names);
  s.file->close();
  seal(s.partial, {s.pixels_begin, s.pixels_begin + s.appended_bytes});
  publish(s.partial, s.path);
  s.partial.clear();
  state_.reset();
}

}  // namespace lockstep
