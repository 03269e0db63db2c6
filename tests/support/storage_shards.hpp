// storage_shards: small sets of shards whose every pixel a test knows, and what is said of those that are wrong.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/random.hpp"
#include "storage/shards.hpp"
#include "support/complaint.hpp"
#include "support/limits.hpp"

namespace lockstep {

struct Picture {
  std::int64_t height, width;
  std::int32_t label;
  std::string name;
  std::vector<std::uint8_t> pixels;
};

/// The i-th picture of every test: 6 x 5, or of its own size.
inline Picture picture(std::int64_t i, bool own_size) {
  Picture p{own_size ? 1 + i % 7 : 6, own_size ? 1 + i % 5 : 5, static_cast<std::int32_t>(i % 3), "cat/" + std::to_string(i) + ".jpg", {}};
  p.pixels.resize(static_cast<std::size_t>(3 * p.height * p.width));
  for (std::size_t k = 0; k < p.pixels.size(); ++k) p.pixels[k] = static_cast<std::uint8_t>(random_bits(1, Purpose::bench, static_cast<std::uint64_t>(i), k)[0]);
  return p;
}

inline ShardHeader header(bool own_size, std::int64_t split_images) {
  ShardHeader h;
  h.split = "train", h.classes = {"cat", "dog", "fish"}, h.fit = own_size ? "short" : "cover", h.rotate = "exif", h.size = 6, h.source = "image-folder";
  if (!own_size) h.height = 6, h.width = 5;
  h.split_images = split_images;
  return h;
}

inline void write_shard(const std::string& folder, const ShardHeader& h, int index, int count, std::int64_t begin, std::int64_t end) {
  const bool own_size = h.height == 0;
  std::int64_t bytes = 0;
  for (std::int64_t i = begin; i < end; ++i) bytes += static_cast<std::int64_t>(picture(i, own_size).pixels.size());
  ShardWriter writer(folder, h, index, count, end - begin, bytes);
  for (std::int64_t i = begin; i < end; ++i) {
    const Picture p = picture(i, own_size);
    writer.append({p.pixels, p.height, p.width, p.label, p.name});
  }
  writer.finish(std::vector<double>{0.5, 0.4, 0.3}, std::vector<double>{0.2, 0.2, 0.1});
}

/// Pictures 0 to n - 1 in `count` shards.
inline void write_set(const std::string& folder, bool own_size, std::int64_t n, int count) {
  for (int shard = 0; shard < count; ++shard) write_shard(folder, header(own_size, n), shard, count, n * shard / count, n * (shard + 1) / count);
}

inline std::string complaint_of_opening(const std::string& folder, const std::string& split = "train") {
  return complaint([&] { Dataset(folder, split); });
}
/// The same for opening and reading every image.
inline std::string complaint_of_reading(const std::string& folder) {
  return complaint([&] {
    const Dataset data(folder, "train");
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(data.max_image_bytes()));
    for (std::int64_t id = 0; id < data.size(); ++id) data.read(id, pixels.data());
  });
}

/// Bytes that this process has mapped.
inline rlim_t address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

}  // namespace lockstep
