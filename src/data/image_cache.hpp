// image_cache: a data set's images in memory, read once: a batch is then its cuts alone.
// In: a data set and what memory there is.  Out: one arena, every image at an offset that stays.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "storage/shards.hpp"
#include "tensor/device.hpp"

namespace lockstep {

enum class CachePlace { none, host, device };

/// What a cache may take.
struct CacheRoom {
  bool is_host = true;                   // the device is a CPU: its memory is the host's
  std::size_t device_bytes = 0, host_bytes = 0;   // free, for this rank
};

/// Where data.cache puts a split; device only on a GPU.  Error when it does not fit where it was asked for.
CachePlace choose_cache(const std::string& cache, const std::string& split, std::size_t bytes, bool is_one_size, const CacheRoom& room);

class ImageCache {
 public:
  /// Reads all images with so many threads and compares their checksums.  tick: called after each image; may be empty.
  ImageCache(Device& device, const Dataset& dataset, CachePlace place, std::int64_t readers, const std::function<void()>& tick);
  static std::size_t bytes_of(const Dataset& dataset);
  /// A rank's share of what this host, or the control group that leaves its job least, could give away now, the page cache included.
  static std::size_t room_of_host(int ranks_of_host);

  /// Whether kernels can read it.
  bool is_on_device() const { return is_on_device_; }
  const std::uint8_t* pixels() const { return static_cast<const std::uint8_t*>(arena_.data()); }
  std::int64_t offset(std::int64_t id) const { return offsets_[static_cast<std::size_t>(id)]; }
  std::size_t bytes() const { return arena_.bytes(); }

 private:
  bool is_on_device_;
  std::vector<std::int64_t> offsets_;    // [images]
  Allocation arena_;                     // u8
};

/// As config.cache says; null: images are read batch by batch.  ranks_of_host share its memory.
std::unique_ptr<ImageCache> cache_images(Device& device, const Dataset& dataset, const DataConfig& config, int ranks_of_host, const std::function<void()>& tick);

}  // namespace lockstep
