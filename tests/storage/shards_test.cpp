#include "storage/shards.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "storage/sealed_file.hpp"
#include "support/python.hpp"
#include "support/storage_shards.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

TEST(Shards, EveryImageComesBackAsItWasWritten) {
  for (const bool own_size : {false, true})
    for (const int count : {1, 3}) {
      const ScratchFolder folder;
      write_set(folder.path(), own_size, 50, count);
      const Dataset data(folder.path(), "train");
      ASSERT_EQ(data.size(), 50);
      EXPECT_EQ(data.files().size(), static_cast<std::size_t>(count));
      EXPECT_EQ(data.header().classes, header(own_size, 50).classes);
      EXPECT_EQ(data.header().height, own_size ? 0 : 6);
      EXPECT_EQ(data.header().fit, own_size ? "short" : "cover");
      EXPECT_EQ(data.header().mean, (std::vector<double>{0.5, 0.4, 0.3}));
      EXPECT_EQ(data.max_image_bytes(), own_size ? 7 * 5 * 3 : 6 * 5 * 3);
      for (std::int64_t id = 0; id < 50; ++id) {
        const Picture want = picture(id, own_size);
        const ImageRecord& record = data.records()[static_cast<std::size_t>(id)];
        std::vector<std::uint8_t> pixels(static_cast<std::size_t>(record.bytes()));
        data.read(id, pixels.data());
        EXPECT_EQ(pixels, want.pixels);
        EXPECT_EQ(record.height, want.height);
        EXPECT_EQ(record.width, want.width);
        EXPECT_EQ(record.label, want.label);
        EXPECT_EQ(data.name_of(id), want.name);
      }
    }
}

TEST(Shards, H5pyReadsPixelsLabelsChecksumsNamesAndAttributes) {
  for (const bool own_size : {false, true}) {
    const ScratchFolder folder;
    write_set(folder.path(), own_size, 50, 1);
    std::string all;
    for (std::int64_t i = 0; i < 50; ++i) {
      const Picture p = picture(i, own_size);
      all.append(p.pixels.begin(), p.pixels.end());
    }
    write_file(folder / "pixels", all);
    EXPECT_EQ(run_python(R"(
import sys, h5py, numpy as np
def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8): crc = (crc >> 1) ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff
f, want = h5py.File(sys.argv[1]), np.fromfile(sys.argv[2], np.uint8)
a = dict(f.attrs)
assert a["format"] == "lockstep-shard" and a["version"] == 1 and a["split"] == "train" and a["source"] == "image-folder"
assert a["classes"].tolist() == ["cat", "dog", "fish"] and a["mean"].tolist() == [.5, .4, .3] and a["std"].tolist() == [.2, .2, .1]
assert a["images"] == 50 and a["split_images"] == 50 and a["size"] == 6 and a["rotate"] == "exif" and (a["shard"], a["shards"]) == (0, 1)
if "images" in f:
    assert f["images"].shape == (50, 6, 5, 3) and (a["height"], a["width"]) == (6, 5)
    images = list(f["images"][:])
    pixels = f["images"][:].ravel()
else:
    pixels = f["pixels"][:]
    sizes = [(int(h), int(w)) for h, w in zip(f["heights"], f["widths"])]
    assert sizes == [(1 + i % 7, 1 + i % 5) for i in range(50)]
    images = [pixels[o:o + 3 * h * w] for o, (h, w) in zip(f["offsets"], sizes)]
assert (pixels == want).all() and f["labels"][:].tolist() == [i % 3 for i in range(50)]
assert [crc32c(i.tobytes()) for i in images] == f["crc32c"][:].tolist()
assert [n.decode() for n in f["names"]] == [f"cat/{i}.jpg" for i in range(50)]
print("equal")
)", {folder / "train-00000-of-00001.h5", folder / "pixels"}), "equal\n");
  }
}

TEST(Shards, ALargeShardIsWrittenInSeveralBlocks) {
  const ScratchFolder folder;
  ShardHeader h = header(false, 40);
  h.height = 256, h.width = 700;   // 21 MB in all, blocks of 4 MiB
  {
    ShardWriter writer(folder.path(), h, 0, 1, 40, 40 * 256 * 700 * 3);
    for (int i = 0; i < 40; ++i) writer.append({std::vector<std::uint8_t>(256 * 700 * 3, static_cast<std::uint8_t>(i)), 256, 700, 0, "x"});
    writer.finish(h.mean, h.std);
  }
  const Dataset data(folder.path(), "train");
  std::vector<std::uint8_t> pixels(256 * 700 * 3);
  for (int i = 0; i < 40; ++i) {
    data.read(i, pixels.data());
    EXPECT_TRUE(std::ranges::count(pixels, i) == 256 * 700 * 3);
  }
}

/// Calls of this process that read files, as Linux counts them; 0 where it does not.
std::int64_t read_calls() {
  std::ifstream file("/proc/self/io");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("syscr: ")) return std::stoll(line.substr(7));
  return 0;
}

// On a file system of 5 ms a read, 200 shards of 17 reads each took 17 s to open, in which no rank did anything.
TEST(Shards, OpeningReadsAShardsTrailerAndWhatLiesBeforeAndBehindItsPixelsOnce) {
  constexpr int shards = 40;
  for (const bool own_size : {false, true}) {
    const ScratchFolder folder;
    write_set(folder.path(), own_size, 80, shards);
    const std::int64_t before = read_calls();
    const Dataset data(folder.path(), "train");
    const std::int64_t calls = read_calls() - before;
    if (before == 0) GTEST_SKIP() << "this Linux does not count reads";
    EXPECT_GE(calls, 3 * shards);
    EXPECT_LE(calls, 3 * shards + shards / 2) << "some are of the counter's own file and of other threads";
  }
}

TEST(Shards, MoreShardsThanAProcessMayOpenAreReadByManyThreads) {
  const ScratchFolder folder;
  write_set(folder.path(), true, 400, 200);
  const LoweredLimit limit(RLIMIT_NOFILE, 64);
  const Dataset data(folder.path(), "train");
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 1000; ++i) {
        const Bits4 bits = random_bits(4, Purpose::bench, t, i);
        const auto id = static_cast<std::int64_t>(below(400, bits[0], bits[1]));
        std::vector<std::uint8_t> pixels(static_cast<std::size_t>(data.records()[static_cast<std::size_t>(id)].bytes()));
        data.read(id, pixels.data());
        right += pixels == picture(id, true).pixels;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 8000);
}

TEST(Shards, OnlyAFinishedWriterLeavesAnything) {
  const ScratchFolder folder;
  const auto files = [&] { return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()); };
  {
    ShardWriter writer(folder.path(), header(false, 2), 0, 1, 2, 180);
    const Picture p = picture(0, false);
    writer.append({p.pixels, p.height, p.width, p.label, p.name});
    EXPECT_TRUE(fs::exists(folder / "train-00000-of-00001.h5.partial"));
    ShardWriter moved = std::move(writer);
  }
  EXPECT_EQ(files(), 0);
  write_file(folder / "train-00000-of-00001.h5.partial", "of a killed conversion");
  write_set(folder.path(), false, 2, 1);
  EXPECT_EQ(files(), 1);
  EXPECT_EQ(complaint_of_reading(folder.path()), "no error");
}

TEST(Shards, WhatDoesNotFitTheHeaderIsRefused) {
  const ScratchFolder folder;
  EXPECT_SAYS(complaint([&] { ShardWriter(folder.path(), header(false, 2), 0, 1, 2, 181); }), "are not 181 bytes");
  ShardWriter writer(folder.path(), header(false, 1), 0, 1, 1, 90);
  const std::vector<std::uint8_t> pixels(93);
  const auto append = [&](std::int64_t height, std::int64_t width, std::size_t bytes, std::int32_t label) {
    return complaint([&] { writer.append({std::span(pixels).first(bytes), height, width, label, "n.jpg"}); });
  };
  EXPECT_SAYS(append(5, 6, 90, 0), "n.jpg");
  EXPECT_SAYS(append(6, 5, 93, 0), "n.jpg");
  EXPECT_SAYS(append(6, 5, 90, 3), "label 3");
  EXPECT_SAYS(append(6, 5, 90, -1), "label -1");
  EXPECT_EQ(append(6, 5, 90, 2), "no error");
}

/// Broken images are left out, and of images of own sizes nobody knows the bytes before they are decoded.
TEST(Shards, FewerOrMoreImagesThanAnnouncedMayCome) {
  for (const bool own_size : {false, true})
    for (const std::int64_t announced : {0, 2, 9}) {
      const ScratchFolder folder;
      ShardHeader h = header(own_size, 0);
      const std::int64_t bytes = announced * 3 * h.height * h.width;
      ShardWriter writer(folder.path(), h, 0, 1, announced, bytes);
      for (int i = 0; i < 5; ++i) {
        const Picture p = picture(i, own_size);
        writer.append({p.pixels, p.height, p.width, p.label, p.name});
      }
      writer.finish(std::vector<double>{0.5, 0.5, 0.5}, std::vector<double>{0.5, 0.5, 0.5}, 5);
      EXPECT_EQ(complaint_of_reading(folder.path()), "no error");
      EXPECT_EQ(Dataset(folder.path(), "train").size(), 5);
    }
}

TEST(Shards, EqualImagesGiveEqualFilesAtAnyTime) {
  const ScratchFolder first, second;
  write_set(first.path(), true, 30, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  write_set(second.path(), true, 30, 2);
  for (const char* name : {"train-00000-of-00002.h5", "train-00001-of-00002.h5"}) EXPECT_EQ(read_file(first / name), read_file(second / name));
}

TEST(Shards, AFullDiskIsAnErrorThatNamesTheFile) {
  const ScratchFolder folder;
  ShardHeader h = header(false, 8);
  h.height = h.width = 1024;
  std::string message;
  {
    ShardWriter writer(folder.path(), h, 0, 1, 8, 8 * 3 << 20);
    const std::vector<std::uint8_t> pixels(3 << 20);
    const LoweredLimit limit(RLIMIT_FSIZE, 4 << 20);
    message = complaint([&] {
      for (int i = 0; i < 8; ++i) writer.append({pixels, 1024, 1024, 0, "x"});
    });
  }
  EXPECT_SAYS(message, "train-00000-of-00001.h5.partial: cannot be written: File too large. Free space");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Shards, AShardWithoutImagesIsLegal) {
  for (const bool own_size : {false, true}) {
    const ScratchFolder folder;
    write_shard(folder.path(), header(own_size, 5), 0, 2, 0, 5);
    write_shard(folder.path(), header(own_size, 5), 1, 2, 5, 5);
    EXPECT_EQ(complaint_of_reading(folder.path()), "no error");
    const ScratchFolder nothing;
    write_shard(nothing.path(), header(own_size, 0), 0, 1, 0, 0);
    EXPECT_SAYS(complaint_of_opening(nothing.path()), "has no images");
  }
}

TEST(Shards, SplitsAreFoundByName) {
  const ScratchFolder folder;
  for (const char* name : {"train-00000-of-00002.h5", "train-00001-of-00002.h5", "val-00000-of-00001.h5", "a-b-00000-of-00001.h5", "big-123456-of-200000.h5"}) write_file(folder / name, "");
  for (const char* name : {"val-0-of-1.h5", "x-00002-of-00002.h5", "-00000-of-00001.h5", "x-00000-of-00001.h5.partial", "x-0000a-of-00001.h5", "x.h5", "-of-.h5"}) write_file(folder / name, "");
  EXPECT_EQ(splits_in(folder.path()), (std::vector<std::string>{"a-b", "big", "train", "val"}));
  EXPECT_EQ(shard_name("train", 3, 16), "train-00003-of-00016.h5");
  EXPECT_EQ(shard_name("train", 123456, 200000), "train-123456-of-200000.h5");
}

TEST(Shards, InspectTellsHeaderCountsAndClasses) {
  const ScratchFolder folder;
  write_set(folder.path(), false, 50, 2);
  const std::string text = inspect_shard(folder / "train-00001-of-00002.h5");
  EXPECT_SAYS(text, "shard      2 of 2 of split \"train\", from image-folder (fit cover, size 6, rotate exif)");
  EXPECT_SAYS(text, "images     25 of the split's 50, 6 x 5 pixels, 2250 bytes");
  EXPECT_SAYS(text, "mean, std  0.5, 0.4, 0.3; 0.2, 0.2, 0.1");
  EXPECT_SAYS(text, "  0  cat  8\n  1  dog  9\n  2  fish  8\n");   // pictures 25 to 49
  EXPECT_SAYS(text, "the seal and all images hold");
}

TEST(Shards, FourteenMillionImagesFitIntoHalfAGigabyteOfRecords) { EXPECT_LE(sizeof(ImageRecord) * 14'000'000, std::size_t{1} << 29); }

}  // namespace
}  // namespace lockstep
