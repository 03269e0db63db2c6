#include "data/image_cache.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "base/host_memory.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t alignment = 16, piece_bytes = 64 << 20, run_images = 32;   // a piece: what is copied to a GPU at once; a run: what a thread takes at once

std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

/// Reads images [begin, end), the first of them to `to`.  Of several errors the one of the first image is thrown.
void read_images(const Dataset& dataset, std::int64_t begin, std::int64_t end, std::uint8_t* to, const std::vector<std::int64_t>& offsets, std::int64_t readers,
                 const std::function<void()>& tick) {
  std::atomic<std::int64_t> next = begin;
  std::mutex mutex;
  std::exception_ptr error;
  std::int64_t error_at = end;
  const auto read = [&] {
    for (std::int64_t first; (first = next.fetch_add(run_images)) < end;)
      for (std::int64_t id = first; id < std::min(first + run_images, end); ++id) {
        try {
          dataset.read(id, to + (offsets[static_cast<std::size_t>(id)] - offsets[static_cast<std::size_t>(begin)]));
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (id < error_at) error = std::current_exception(), error_at = id;
          next = end;
          return;
        }
        if (tick) tick();
      }
  };
  std::vector<std::thread> threads;
  for (std::int64_t i = 1; i < std::min(readers, (end - begin + run_images - 1) / run_images); ++i) threads.emplace_back(read);
  read();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace

CachePlace choose_cache(const std::string& cache, const std::string& split, std::size_t bytes, bool is_one_size, const CacheRoom& room) {
  if (cache == "none" || (cache == "auto" && room.is_host)) return CachePlace::none;   // a host keeps what it has read by itself
  if (cache == "auto") return is_one_size && bytes <= room.device_bytes / 8 ? CachePlace::device : CachePlace::none;
  if (cache == "host" || room.is_host) {
    require(bytes <= room.host_bytes, "data.cache = \"", cache, "\": the images of split \"", split, "\" take ", bytes >> 20, " MiB, and this host has ", room.host_bytes >> 20,
            " MiB free for this rank, or the job's limit (Slurm's --mem) leaves no more. Set data.cache to \"none\", ask for more, or start fewer ranks on each host.");
    return CachePlace::host;
  }
  // A sixteenth is left for what libraries and recordings take later.
  require(bytes <= room.device_bytes - room.device_bytes / 16, "data.cache = \"device\": the images of split \"", split, "\" take ", bytes >> 20, " MiB, and the GPU has ",
          room.device_bytes >> 20, " MiB free beside the network. Set data.cache to \"auto\", \"host\" or \"none\".");
  return CachePlace::device;
}

std::size_t ImageCache::bytes_of(const Dataset& dataset) {
  std::int64_t bytes = 0;
  for (const ImageRecord& record : dataset.records()) bytes += aligned(record.bytes());
  return static_cast<std::size_t>(bytes);
}

std::size_t ImageCache::room_of_host(int ranks_of_host) { return host_memory().available / static_cast<std::size_t>(std::max(ranks_of_host, 1)); }

ImageCache::ImageCache(Device& device, const Dataset& dataset, CachePlace place, std::int64_t readers, const std::function<void()>& tick)
    : is_on_device_(device.is_host() || place == CachePlace::device) {
  std::int64_t bytes = 0;
  for (const ImageRecord& record : dataset.records()) {
    offsets_.push_back(bytes);
    bytes += aligned(record.bytes());
  }
  const auto size = static_cast<std::size_t>(bytes);
  if (place != CachePlace::device || device.is_host()) {
    arena_ = Allocation(std::malloc(size), size, [](void* p) { std::free(p); });
    require(arena_.data() || size == 0, "this host has no ", size >> 20, " MiB of memory left for data.cache. Set it to \"none\".");
    read_images(dataset, 0, dataset.size(), static_cast<std::uint8_t*>(arena_.data()), offsets_, readers, tick);
    return;
  }
  arena_ = device.allocate(size);
  const Allocation piece = device.allocate_pinned(static_cast<std::size_t>(std::min(bytes, std::max(piece_bytes, aligned(dataset.max_image_bytes())))));
  auto* staged = static_cast<std::uint8_t*>(piece.data());
  const auto end_of = [&](std::int64_t id) { return id + 1 < dataset.size() ? offset(id + 1) : bytes; };
  for (std::int64_t begin = 0, end = 0; begin < dataset.size(); begin = end) {
    while (end < dataset.size() && end_of(end) - offset(begin) <= static_cast<std::int64_t>(piece.bytes())) ++end;
    read_images(dataset, begin, end, staged, offsets_, readers, tick);
    device.copy_to_device(static_cast<std::uint8_t*>(arena_.data()) + offset(begin), staged, static_cast<std::size_t>(end_of(end - 1) - offset(begin)));
    device.wait();
  }
}

std::unique_ptr<ImageCache> cache_images(Device& device, const Dataset& dataset, const DataConfig& config, int ranks_of_host, const std::function<void()>& tick) {
  const CacheRoom room{.is_host = device.is_host(), .device_bytes = device.free_bytes(), .host_bytes = ImageCache::room_of_host(ranks_of_host)};
  const ShardHeader& header = dataset.header();
  const CachePlace place = choose_cache(config.cache, header.split, ImageCache::bytes_of(dataset), header.height > 0, room);
  return place == CachePlace::none ? nullptr : std::make_unique<ImageCache>(device, dataset, place, config.readers, tick);
}

}  // namespace lockstep
