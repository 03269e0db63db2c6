// shards: the format of image data sets.  <folder>/<split>-00000-of-00016.h5, one HDF5 file each; a data set = the sorted shards of a folder.
// Images of one size: `images` u8 [n, h, w, 3] contiguous.  Of own sizes: `pixels` u8 [bytes], `offsets` i64 [n], `heights`, `widths` i32 [n].
// Also `labels` i32 [n], `crc32c` u32 [n] (one an image, checked when read), `names` [n] (where each came from).
// Root attributes: see ShardHeader.  All but the pixels is covered by the seal.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

inline constexpr const char* shard_format = "lockstep-shard";
inline constexpr std::int64_t shard_version = 1;
inline constexpr std::int64_t shard_largest_side = 1 << 20;   // pixels; 3 * side * side fits an int64

struct ShardHeader {
  std::string split;                        // "train", "val"
  std::vector<std::string> classes;         // the label map, sorted as text unless the source has its own order
  std::int64_t height = 0, width = 0;       // 0 for images of own sizes
  std::string fit, rotate;                  // how convert made them: cover, short, stretch, pad, none / exif, none
  std::int64_t size = 0;                    // convert's --size
  std::vector<double> mean, std;            // a channel, of the training split, as fractions of 255
  std::int64_t split_images = 0;            // in all shards of the split
  std::string source;                       // cifar10, image-folder, ...
};

/// One image on its way into a shard.
struct ShardImage {
  std::span<const std::uint8_t> pixels;     // RGB, [height, width, 3]
  std::int64_t height, width;
  std::int32_t label;
  std::string name;
};

/// Writes one shard aside ("<name>.partial") and publishes it in finish().  Not finished: the destructor removes the partial file.
class ShardWriter {
 public:
  /// images and pixel_bytes: what is expected, so that space is reserved; fewer may come (broken images), or more.
  /// Own sizes when header.height == 0.
  ShardWriter(const std::string& folder, const ShardHeader& header, int index, int count, std::int64_t images, std::int64_t pixel_bytes);
  ~ShardWriter();
  ShardWriter(ShardWriter&&) noexcept;
  void append(const ShardImage& image);     // in order; pixels go to disk by plain writes
  /// What is known only when all images of the split were seen; split_images -1: the header's.
  void finish(std::span<const double> mean, std::span<const double> std, std::int64_t split_images = -1);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct ImageRecord {                         // where an image lies
  int shard = 0;
  std::int64_t offset = 0;                   // in the file
  std::int32_t height = 0, width = 0, label = 0;
  std::uint32_t crc = 0;
  std::int64_t bytes() const { return std::int64_t{3} * height * width; }
};

/// One split of a folder, open for reading; threads may read at once.
class Dataset {
 public:
  /// Verifies seals, headers (equal classes, sizes), and that no shard is missing.  Error names the file and what to do.
  /// mend: what to do about a damaged image.
  Dataset(const std::string& folder, const std::string& split, std::string mend = "Use a whole copy of this shard, or convert again.");
  ~Dataset();
  Dataset(Dataset&&) noexcept;
  const ShardHeader& header() const&;
  ShardHeader header() && { return std::as_const(*this).header(); }   // of a temporary: a copy
  std::int64_t size() const;
  std::span<const std::string> files() const&;                        // not of a temporary: they end with it
  std::span<const ImageRecord> records() const&;
  std::span<const std::string> files() && = delete;
  std::span<const ImageRecord> records() && = delete;
  std::int64_t max_image_bytes() const;
  /// One pread into `pixels` (records()[id].bytes()), its checksum compared.  Error names shard and image.  Thread-safe, no HDF5.
  void read(std::int64_t id, std::uint8_t* pixels) const;
  std::string name_of(std::int64_t id) const;           // slow: asks HDF5
  std::vector<std::string> names_of(int shard) const;   // of all images of one of files(), in order

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Splits that a folder has shards of, sorted; Error when the folder does not exist.
std::vector<std::string> splits_in(const std::string& folder);
std::string shard_name(const std::string& split, int index, int count);
/// The names of a split's shards, by index; Error unless it is one whole set.
std::vector<std::string> shard_files(const std::string& folder, const std::string& split);
/// What is wrong with a shard, its seal and every image; empty when nothing is.
std::string shard_damage(const std::string& path);
/// Header, counts, images a class and the outcome of every checksum, as text (`lockstep inspect SHARD`).  Error if anything is damaged.
std::string inspect_shard(const std::string& path);

}  // namespace lockstep
