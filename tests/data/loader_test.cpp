// loader: what comes out is what was asked for, in order, for any number of readers; and nothing hangs when something goes wrong.
#include "data/loader.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/error.hpp"
#include "support/data_sets.hpp"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

/// 60 images over 3 shards, of one size or each of its own.
class Images {
 public:
  explicit Images(bool is_one_size) : dataset_(written(is_one_size)) {}
  const Dataset& dataset() const { return dataset_; }
  const TestImage& operator[](std::int64_t id) const { return images_[static_cast<std::size_t>(id)]; }
  Augment augment() const {
    AugmentConfig config;
    config.train = "random_resized_crop", config.size = 8, config.flip = true;
    return Augment(config, true, 5, dataset_.header().height, dataset_.header().width, {0.5}, {0.5});
  }
  /// Overwrites the middle of an image in its shard.
  void damage(std::int64_t id) const {
    const ImageRecord& record = dataset_.records()[static_cast<std::size_t>(id)];
    std::fstream file(dataset_.files()[static_cast<std::size_t>(record.shard)], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(record.offset + record.bytes() / 2);
    file.write("damage", 6);
  }

 private:
  Dataset written(bool is_one_size) {
    for (int i = 0; i < 60; ++i) images_.push_back(is_one_size ? test_image(9, 7, 100 + i, i % 10) : test_image(5 + i % 11, 6 + i % 7, 100 + i, i % 10));
    write_split(folder_.path(), "train", images_, 10, 3);
    return Dataset(folder_.path(), "train");
  }
  ScratchFolder folder_;
  std::vector<TestImage> images_;
  Dataset dataset_;
};

Sampler sampler_of(const Images& images, std::int64_t batch) { return Sampler(DataConfig{}, images.dataset().size(), batch, 3); }

/// Reads the slot's device memory back and compares it with the images and with freshly drawn crops.
void expect_slot_holds(Device& device, const Slot& slot, const Work& want, const Images& images, const Augment& augment) {
  ASSERT_EQ(slot.ids, want.ids);
  ASSERT_EQ(slot.count, static_cast<std::int64_t>(want.ids.size()));
  EXPECT_EQ(slot.global_count, want.global_count);
  EXPECT_EQ(slot.first_position, want.positions.begin);
  EXPECT_EQ(std::tuple(slot.epoch, slot.step_in_epoch, slot.part), std::tuple(want.epoch, want.step_in_epoch, want.part));
  for (std::int64_t i = 0; i < slot.count; ++i) {
    const std::int64_t id = want.ids[static_cast<std::size_t>(i)];
    const TestImage& image = images[id];
    Cut cut, fresh = augment.cut(want.epoch, id, image.height, image.width);
    device.copy_to_host(&cut, slot.cuts + i, sizeof cut);
    fresh.offset = cut.offset, fresh.label = image.label;
    EXPECT_EQ(std::memcmp(&cut, &fresh, sizeof cut), 0) << "image " << id;
    std::vector<std::uint8_t> pixels(image.pixels.size());
    device.copy_to_host(pixels.data(), slot.pixels + cut.offset, pixels.size());
    EXPECT_EQ(pixels, image.pixels) << "image " << id;
  }
}

TEST(Loader, HandsOutEveryMicroBatchInOrderWhateverTheReadersAndSlots) {
  Device device;
  for (const bool is_one_size : {true, false}) {
    const Images images(is_one_size);
    const Augment augment = images.augment();
    for (const auto& [readers, slots] : {std::pair{1, 1}, {1, 3}, {2, 2}, {5, 3}, {3, 1}}) {
      SCOPED_TRACE(text_of(is_one_size ? "one size" : "own sizes", ", ", readers, " readers, ", slots, " slots"));
      const WorkSource source = training_work(sampler_of(images, 16), 2, 1, 2, 3);
      std::atomic<std::int64_t> ticks = 0;
      std::int64_t read = 0;
      Loader loader(device, images.dataset(), augment, source, readers, slots, 3, [&] { ++ticks; });
      for (std::int64_t index = 0; index < 40; ++index) {
        Work want;
        source(index, want);
        const Slot* slot = loader.next();
        ASSERT_NE(slot, nullptr);
        if (index % 7 == 0) std::this_thread::sleep_for(2ms);   // readers may run ahead, but not over this slot
        expect_slot_holds(device, *slot, want, images, augment);
        read += slot->count;
      }
      EXPECT_GE(ticks, read);
    }
  }
}

TEST(Loader, HandsOutTheSameFromACacheWithoutTheShards) {
  Device device;
  for (const bool is_one_size : {true, false})
    for (const CachePlace place : {CachePlace::host, CachePlace::device}) {
      const Images images(is_one_size);
      const Augment augment = images.augment();
      const ImageCache cache(device, images.dataset(), place, 3, {});
      for (std::int64_t id = 0; id < 60; ++id) images.damage(id);   // nobody reads there any more
      for (const int readers : {1, 4}) {
        const WorkSource source = training_work(sampler_of(images, 16), 2, 1, 2, 3);
        Loader loader(device, images.dataset(), augment, source, readers, 2, 3, {}, &cache);
        for (std::int64_t index = 0; index < 40; ++index) {
          Work want;
          source(index, want);
          const Slot* slot = loader.next();
          ASSERT_NE(slot, nullptr);
          expect_slot_holds(device, *slot, want, images, augment);
        }
      }
    }
}

TEST(Loader, EndsAfterTheLastBatchAndCopesWithEmptyOnes) {
  Device device;
  const Images images(false);
  const Augment augment = images.augment();
  for (int rank = 0; rank < 5; ++rank) {   // 48 = 3 x 15 + 3: two ranks get nothing in the last step
    const WorkSource source = evaluation_work(48, 3, rank, 5);
    Loader loader(device, images.dataset(), augment, source, 2, 2, 3, {});
    for (std::int64_t index = 0; index < 4; ++index) {
      Work want;
      ASSERT_TRUE(source(index, want));
      const Slot* slot = loader.next();
      ASSERT_NE(slot, nullptr);
      expect_slot_holds(device, *slot, want, images, augment);
    }
    EXPECT_EQ(loader.next(), nullptr);
    EXPECT_EQ(loader.next(), nullptr);
  }
  const auto only_empty = [](std::int64_t index, Work& work) { return work = {}, index < 50; };
  Loader loader(device, images.dataset(), augment, only_empty, 3, 2, 0, {});
  int batches = 0;
  while (const Slot* slot = loader.next()) batches += slot->count == 0;
  EXPECT_EQ(batches, 50);
}

TEST(Loader, AnErrorComesOutAfterTheBatchesBeforeIt) {
  Device device;
  const Images images(true);
  images.damage(37);
  const Augment augment = images.augment();
  const WorkSource in_order = evaluation_work(60, 5, 0, 1);   // image 37 is in batch 7
  for (const int readers : {1, 4}) {
    Loader loader(device, images.dataset(), augment, in_order, readers, 3, 5, {});
    for (int index = 0; index < 7; ++index) ASSERT_NE(loader.next(), nullptr);
    for (int again = 0; again < 2; ++again) {
      try {
        loader.next();
        FAIL() << "a damaged image was handed out";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("image37"), std::string::npos) << error.what();
      }
    }
  }
  const auto failing = [&](std::int64_t index, Work& work) {
    require(index != 3, "no batch 3");
    return in_order(index, work);
  };
  Loader loader(device, images.dataset(), augment, failing, 2, 3, 5, {});
  for (int index = 0; index < 3; ++index) ASSERT_NE(loader.next(), nullptr);
  EXPECT_THROW(loader.next(), Error);
}

TEST(Loader, ABatchLargerThanItsSlotsIsAnErrorAndNotAnOverflow) {
  Device device;
  const Images images(true);
  const Augment augment = images.augment();
  Loader loader(device, images.dataset(), augment, evaluation_work(60, 6, 0, 1), 1, 2, 5, {});
  EXPECT_THROW(loader.next(), Error);
}

TEST(Loader, GoesAwayAtOnceWhileItsReadersWorkOrWait) {
  Device device;
  const Images images(true);
  const Augment augment = images.augment();
  const auto endless = training_work(sampler_of(images, 60), 0, 0, 1, 1);
  for (const int taken : {0, 1, 3})
    for (const auto read_time : {0ms, 50ms}) {   // all that may be read ahead would take three seconds
      const auto start = std::chrono::steady_clock::now();
      {
        Loader loader(device, images.dataset(), augment, endless, 3, 2, 60, [&] { std::this_thread::sleep_for(read_time); });
        for (int i = 0; i < taken && read_time == 0ms; ++i) loader.next();
        if (read_time == 0ms) std::this_thread::sleep_for(20ms);   // now the ring is full and they wait
      }
      EXPECT_LT(std::chrono::steady_clock::now() - start, 1500ms);
    }
}

TEST(Loader, SaysHowLongItWaitedForSlowReaders) {
  Device device;
  const Images images(true);
  const Augment augment = images.augment();
  Loader loader(device, images.dataset(), augment, evaluation_work(60, 5, 0, 1), 1, 2, 5, [] { std::this_thread::sleep_for(2ms); });
  for (std::int64_t index = 0; const Slot* slot = loader.next(); ++index) EXPECT_EQ(slot->ids[0], index * 5);
  EXPECT_GT(loader.wait_seconds(), 0.1);
  EXPECT_LT(loader.wait_seconds(), 10);
}

TEST(Loader, ReadsAheadNoMoreThanItsSlots) {
  Device device;
  const Images images(true);
  const Augment augment = images.augment();
  std::atomic<int> ticks = 0;
  Loader loader(device, images.dataset(), augment, evaluation_work(60, 5, 0, 1), 2, 3, 5, [&] { ++ticks; });
  loader.next();
  const int wanted = 5 * (device.is_host() ? 4 : 5);   // the one in use, or two copies, and three ahead
  for (int i = 0; ticks < wanted && i < 1000; ++i) std::this_thread::sleep_for(5ms);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(ticks, wanted);
}

}  // namespace
}  // namespace lockstep
