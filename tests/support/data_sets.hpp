// data_sets: small images for tests, and shards of them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "storage/shards.hpp"
#include "support/scratch.hpp"

namespace lockstep {

struct TestImage {
  std::int64_t height = 0, width = 0;
  std::int32_t label = 0;
  std::vector<std::uint8_t> pixels;   // [height, width, 3]
};

/// Smooth waves with some noise: as photographs are, so that resizing keeps something of it.
inline TestImage test_image(std::int64_t height, std::int64_t width, std::uint64_t seed, std::int32_t label = 0) {
  TestImage image{height, width, label, std::vector<std::uint8_t>(static_cast<std::size_t>(height * width * 3))};
  const Uniform4 u = uniform4(seed, Purpose::bench, 0, 0);
  for (std::int64_t y = 0, i = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c, ++i) {
        const double wave = std::sin(0.3 * u[0] * static_cast<double>(y) + u[1] * (c + 1)) * std::cos(0.2 * u[2] * static_cast<double>(x) + u[3] * (c + 2));
        const double noise = uniform4(seed, Purpose::bench, 1, static_cast<std::uint64_t>(i))[0] - 0.5;
        image.pixels[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(std::clamp(127.5 + 90 * wave + 60 * noise, 0.0, 255.0));
      }
  return image;
}

/// Images in the order given, spread over `shards` files.  All of one size: stored so.
inline void write_split(const std::string& folder, const std::string& split, const std::vector<TestImage>& images, int classes, int shards) {
  ShardHeader header;
  header.split = split, header.fit = "none", header.rotate = "none", header.source = "test";
  header.split_images = static_cast<std::int64_t>(images.size());
  for (int i = 0; i < classes; ++i) header.classes.push_back("class" + std::to_string(1000 + i));
  const bool is_one_size = std::ranges::all_of(images, [&](const TestImage& i) { return i.height == images[0].height && i.width == images[0].width; });
  if (is_one_size) header.height = images[0].height, header.width = images[0].width;
  for (int s = 0; s < shards; ++s) {
    const std::size_t begin = images.size() * static_cast<std::size_t>(s) / static_cast<std::size_t>(shards);
    const std::size_t end = images.size() * static_cast<std::size_t>(s + 1) / static_cast<std::size_t>(shards);
    std::int64_t bytes = 0;
    for (std::size_t i = begin; i < end; ++i) bytes += static_cast<std::int64_t>(images[i].pixels.size());
    ShardWriter writer(folder, header, s, shards, static_cast<std::int64_t>(end - begin), bytes);
    for (std::size_t i = begin; i < end; ++i) writer.append({images[i].pixels, images[i].height, images[i].width, images[i].label, "image" + std::to_string(i)});
    const double mean[] = {0.5, 0.5, 0.5}, std[] = {0.25, 0.25, 0.25};
    writer.finish(mean, std);
  }
}

/// Whether apt's Python can import a module.
inline bool python_has(const std::string& module) { return std::system(("/usr/bin/python3 -c 'import " + module + "' > /dev/null 2>&1").c_str()) == 0; }

/// The bytes of a file as numbers, and back.
template <class T>
std::vector<T> numbers_in(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(T));
  return numbers;
}
inline std::string bytes_of(const std::vector<std::uint8_t>& pixels) { return {pixels.begin(), pixels.end()}; }

}  // namespace lockstep
