// image_cache: where a split is kept, and that it is kept whole.
#include "data/image_cache.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>

#include "base/error.hpp"
#include "support/data_sets.hpp"

namespace lockstep {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

TEST(ImageCache, GoesWhereItIsAskedForAndByItselfOnlyToAGpuWithEightTimesTheRoom) {
  const CacheRoom cpu{.is_host = true, .device_bytes = 0, .host_bytes = 200 * mib}, gpu{.is_host = false, .device_bytes = 1600 * mib, .host_bytes = 200 * mib};
  const auto place = [](const char* cache, std::size_t bytes, bool is_one_size, const CacheRoom& room) { return choose_cache(cache, "train", bytes, is_one_size, room); };
  for (const bool is_one_size : {true, false}) {
    EXPECT_EQ(place("auto", mib, is_one_size, cpu), CachePlace::none);
    EXPECT_EQ(place("host", 200 * mib, is_one_size, cpu), CachePlace::host);
    EXPECT_EQ(place("device", 200 * mib, is_one_size, cpu), CachePlace::host);
    EXPECT_EQ(place("auto", 200 * mib, is_one_size, gpu), is_one_size ? CachePlace::device : CachePlace::none);
    EXPECT_EQ(place("auto", 200 * mib + 1, is_one_size, gpu), CachePlace::none);
    EXPECT_EQ(place("host", 200 * mib, is_one_size, gpu), CachePlace::host);
    EXPECT_EQ(place("device", 1500 * mib, is_one_size, gpu), CachePlace::device);
    for (const CacheRoom& room : {cpu, gpu}) EXPECT_EQ(place("none", 1, is_one_size, room), CachePlace::none);
  }
}

TEST(ImageCache, SaysHowMuchIsMissingAndWhatToSet) {
  const CacheRoom cpu{.is_host = true, .device_bytes = 0, .host_bytes = 200 * mib}, gpu{.is_host = false, .device_bytes = 1600 * mib, .host_bytes = 200 * mib};
  const auto complaint = [](const char* cache, std::size_t bytes, const CacheRoom& room) -> std::string {
    try {
      choose_cache(cache, "train", bytes, true, room);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), exit_bad_input);
      return error.what();
    }
    return "no error";
  };
  for (const auto& [text, parts] : {std::pair{complaint("host", 300 * mib, gpu), std::vector<const char*>{"data.cache = \"host\"", "\"train\"", "300 MiB", "200 MiB", "\"none\""}},
                                    {complaint("device", 300 * mib, cpu), {"data.cache = \"device\"", "300 MiB", "this host has 200 MiB"}},
                                    {complaint("device", 1600 * mib, gpu), {"1600 MiB", "the GPU has 1600 MiB free beside the network", "\"host\""}}})
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(ImageCache, HoldsEveryImageAndRefusesADamagedOneByName) {
  const ScratchFolder folder;
  std::vector<TestImage> images;
  for (int i = 0; i < 150; ++i) images.push_back(test_image(5 + i % 11, 6 + i % 7, 100 + i, i % 10));
  write_split(folder.path(), "train", images, 10, 3);
  const Dataset dataset(folder.path(), "train");
  Device device;
  for (const CachePlace place : {CachePlace::host, CachePlace::device})
    for (const int readers : {1, 4}) {
      std::atomic<int> ticks = 0;
      const ImageCache cache(device, dataset, place, readers, [&] { ++ticks; });
      EXPECT_EQ(ticks, 150);
      EXPECT_EQ(cache.bytes(), ImageCache::bytes_of(dataset));
      for (std::int64_t id = 0; id < 150; ++id) {
        const TestImage& image = images[static_cast<std::size_t>(id)];
        std::vector<std::uint8_t> pixels(image.pixels.size());
        if (cache.is_on_device()) device.copy_to_host(pixels.data(), cache.pixels() + cache.offset(id), pixels.size());
        else std::copy_n(cache.pixels() + cache.offset(id), pixels.size(), pixels.begin());
        EXPECT_EQ(pixels, image.pixels) << "image " << id;
      }
    }
  for (const std::int64_t id : {141, 77}) {   // of several, the first is named
    const ImageRecord& record = dataset.records()[static_cast<std::size_t>(id)];
    std::fstream file(dataset.files()[static_cast<std::size_t>(record.shard)], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(record.offset + record.bytes() / 2);
    file.write("damage", 6);
    file.close();
    try {
      const ImageCache cache(device, dataset, CachePlace::host, 4, {});
      FAIL() << "a damaged image was kept";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text_of("image", id)), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace lockstep
