#include "storage/shards.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.hpp"
#include "base/random.hpp"
#include "storage/hdf5.hpp"
#include "storage/sealed_file.hpp"
#include "support/limits.hpp"
#include "support/python.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct Picture {
  std::int64_t height, width;
  std::int32_t label;
  std::string name;
  std::vector<std::uint8_t> pixels;
};

/// The i-th picture of every test: 6 x 5, or of its own size.
Picture picture(std::int64_t i, bool own_size) {
  Picture p{own_size ? 1 + i % 7 : 6, own_size ? 1 + i % 5 : 5, static_cast<std::int32_t>(i % 3), "cat/" + std::to_string(i) + ".jpg", {}};
  p.pixels.resize(static_cast<std::size_t>(3 * p.height * p.width));
  for (std::size_t k = 0; k < p.pixels.size(); ++k) p.pixels[k] = static_cast<std::uint8_t>(random_bits(1, Purpose::bench, static_cast<std::uint64_t>(i), k)[0]);
  return p;
}

ShardHeader header(bool own_size, std::int64_t split_images) {
  ShardHeader h;
  h.split = "train", h.classes = {"cat", "dog", "fish"}, h.fit = own_size ? "short" : "cover", h.rotate = "exif", h.size = 6, h.source = "image-folder";
  if (!own_size) h.height = 6, h.width = 5;
  h.split_images = split_images;
  return h;
}

void write_shard(const std::string& folder, const ShardHeader& h, int index, int count, std::int64_t begin, std::int64_t end) {
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
void write_set(const std::string& folder, bool own_size, std::int64_t n, int count) {
  for (int shard = 0; shard < count; ++shard) write_shard(folder, header(own_size, n), shard, count, n * shard / count, n * (shard + 1) / count);
}

std::string complaint(const auto& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "no error";
}
std::string complaint_of_opening(const std::string& folder, const std::string& split = "train") {
  return complaint([&] { Dataset(folder, split); });
}
/// The same for opening and reading every image.
std::string complaint_of_reading(const std::string& folder) {
  return complaint([&] {
    const Dataset data(folder, "train");
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(data.max_image_bytes()));
    for (std::int64_t id = 0; id < data.size(); ++id) data.read(id, pixels.data());
  });
}

/// Bytes that this process has mapped.
rlim_t address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

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

TEST(Shards, TruncationAtEachPercentIsNoticed) {
  const ScratchFolder folder;
  write_set(folder.path(), true, 200, 1);
  const std::string path = folder / "train-00000-of-00001.h5", whole = read_file(path);
  for (std::size_t percent = 0; percent < 100; ++percent) {
    write_file(path, std::string_view(whole).substr(0, whole.size() * percent / 100));
    EXPECT_SAYS(complaint_of_opening(folder.path()), "train-00000-of-00001.h5: ");
  }
}

TEST(Shards, TwoHundredRandomFlippedBitsAreEachNoticed) {
  for (const bool own_size : {false, true}) {
    const ScratchFolder folder;
    write_set(folder.path(), own_size, 200, 1);
    const std::string path = folder / "train-00000-of-00001.h5", whole = read_file(path);
    for (std::uint64_t i = 0; i < 200; ++i) {
      const Bits4 bits = random_bits(3, Purpose::bench, own_size, i);
      const std::uint64_t bit = below(whole.size() * 8, bits[0], bits[1]);
      std::string damaged = whole;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      write_file(path, damaged);
      EXPECT_SAYS(complaint_of_reading(folder.path()), path + ": ");
      EXPECT_THROW(inspect_shard(path), Error);
    }
  }
}

TEST(Shards, EveryFlippedByteOfAnImageIsNoticedAndTheImageNamed) {
  const ScratchFolder folder;
  write_set(folder.path(), false, 20, 1);
  const std::string path = folder / "train-00000-of-00001.h5", whole = read_file(path);
  const Dataset data(folder.path(), "train");
  const auto begin = static_cast<std::size_t>(data.records()[0].offset), end = begin + 20 * 90;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if ((i < begin || i >= end) && i % 11 != 0) continue;   // of what the seal covers, a part
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 + i % 255));
    write_file(path, damaged);
    const std::string message = complaint_of_reading(folder.path());
    if (i < begin || i >= end) EXPECT_EQ(message.find(path + ": "), 0u) << i << ": " << message;
    else EXPECT_SAYS(message, path + ": image " + std::to_string((i - begin) / 90) + " (cat/" + std::to_string((i - begin) / 90) + ".jpg) differs from its checksum");
  }
}

TEST(Shards, DamagedImagesAreToldAsRanges) {
  const ScratchFolder folder;
  write_set(folder.path(), false, 20, 1);
  const std::string path = folder / "train-00000-of-00001.h5";
  std::string bytes = read_file(path);
  const auto records = Dataset(folder.path(), "train");
  for (const std::size_t image : {3, 4, 5, 9, 19}) bytes[static_cast<std::size_t>(records.records()[image].offset) + 7] ^= 1;
  write_file(path, bytes);
  EXPECT_SAYS(complaint([&] { inspect_shard(path); }), path + ": 5 of 20 images differ from their checksums, the first is image 3 (cat/3.jpg); images 3-5, 9, 19. Use a whole copy");
  EXPECT_EQ(shard_damage(path), "5 of 20 images differ from their checksums, the first is image 3 (cat/3.jpg); images 3-5, 9, 19");
}

TEST(Shards, ADamagedImageIsNamedAndOthersAreStillRead) {
  const ScratchFolder folder;
  write_set(folder.path(), false, 20, 2);
  const Dataset data(folder.path(), "train");
  const std::string path = folder / "train-00001-of-00002.h5";
  std::string bytes = read_file(path);
  bytes[static_cast<std::size_t>(data.records()[13].offset) + 4] ^= 64;
  write_file(path, bytes);
  std::vector<std::uint8_t> pixels(90);
  EXPECT_SAYS(complaint([&] { data.read(13, pixels.data()); }), path + ": image 3 (cat/13.jpg) differs from its checksum");
  EXPECT_EQ(complaint([&] { data.read(12, pixels.data()); }), "no error");
  EXPECT_EQ(complaint_of_opening(folder.path()), "no error");   // pixels are checked when they are read
  EXPECT_SAYS(complaint([&] { inspect_shard(path); }), "1 of 10 images differ from their checksums, the first is image 3 (cat/13.jpg)");
}

TEST(Shards, AFileThatShrinksWhileItIsReadIsAnError) {
  const ScratchFolder folder;
  write_set(folder.path(), false, 20, 1);
  const Dataset data(folder.path(), "train");
  std::vector<std::uint8_t> pixels(90);
  data.read(0, pixels.data());
  fs::resize_file(folder / "train-00000-of-00001.h5", static_cast<std::uintmax_t>(data.records()[10].offset));
  EXPECT_SAYS(complaint([&] { data.read(10, pixels.data()); }), "image 10 (its name cannot be read) lies past the end");
}

TEST(Shards, AnIncompleteOrMixedFolderIsExplained) {
  const ScratchFolder folder;
  EXPECT_SAYS(complaint_of_opening(folder / "none"), "there is no such folder. Check data.path, or make it with lockstep-convert");
  EXPECT_SAYS(complaint_of_opening(folder.path()), "holds no shards (train-00000-of-00016.h5, ...). Make them with lockstep-convert");
  write_file(folder / "README", "");
  EXPECT_SAYS(complaint_of_opening(folder / "README"), "this is no folder");
  EXPECT_TRUE(splits_in(folder.path()).empty());

  write_set(folder.path(), false, 40, 16);
  EXPECT_EQ(complaint_of_opening(folder.path()), "no error");
  EXPECT_SAYS(complaint_of_opening(folder.path(), "val"), "has no split \"val\"; it has train.");
  EXPECT_SAYS(complaint_of_opening(folder.path(), "trian"), "Did you mean \"train\"?");

  fs::rename(folder / "train-00003-of-00016.h5", folder / "train-00003-of-00016.h5.partial");
  EXPECT_SAYS(complaint_of_opening(folder.path()), "train-00003-of-00016.h5 is missing. A conversion did not finish (train-00003-of-00016.h5.partial): run lockstep-convert again");
  fs::remove(folder / "train-00003-of-00016.h5.partial");
  EXPECT_SAYS(complaint_of_opening(folder.path()), "train-00003-of-00016.h5 is missing. Copy the whole folder");
  fs::remove(folder / "train-00015-of-00016.h5");
  EXPECT_SAYS(complaint_of_opening(folder.path()), "train-00003-of-00016.h5 and 1 more of 16 shards are missing");

  write_set(folder.path(), false, 40, 2);
  EXPECT_SAYS(complaint_of_opening(folder.path()), "holds shards of more than one conversion of \"train\": 2 of *-of-00002.h5, 14 of *-of-00016.h5. Keep one set");
}

TEST(Shards, ACountInAFilesNameTakesNoMemory) {
  const ScratchFolder folder;
  write_file(folder / "train-00001-of-2000000000.h5", "");
  const LoweredLimit memory(RLIMIT_AS, address_space() + (rlim_t{128} << 20));
  EXPECT_SAYS(complaint_of_opening(folder.path()), "train-00000-of-2000000000.h5 and 1999999998 more of 2000000000 shards are missing");
}

TEST(Shards, ShardsThatDoNotBelongTogetherAreNamed) {
  const auto with_second = [](const auto& change) {
    const ScratchFolder folder;
    ShardHeader h = header(false, 20);
    write_shard(folder.path(), h, 0, 2, 0, 10);
    change(h);
    write_shard(folder.path(), h, 1, 2, 10, 20);
    return complaint_of_opening(folder.path());
  };
  EXPECT_EQ(with_second([](ShardHeader&) {}), "no error");
  EXPECT_SAYS(with_second([](ShardHeader& h) { h.classes[2] = "bird"; }), "train-00001-of-00002.h5: its classes differ from those of");
  EXPECT_SAYS(with_second([](ShardHeader& h) { h.height = h.width = 0; }), "its image height and width differ");
  EXPECT_SAYS(with_second([](ShardHeader& h) { h.rotate = "none"; }), "its fit, size and rotate differ");
  EXPECT_SAYS(with_second([](ShardHeader& h) { h.split_images = 21; }), "its count of the split's images differ");

  const ScratchFolder folder;
  write_shard(folder.path(), header(false, 20), 0, 2, 0, 10);
  fs::copy(folder / "train-00000-of-00002.h5", folder / "train-00001-of-00002.h5");
  EXPECT_SAYS(complaint_of_opening(folder.path()), "train-00001-of-00002.h5: was made as train-00000-of-00002.h5 and renamed");
  fs::rename(folder / "train-00000-of-00002.h5", folder / "val-00000-of-00001.h5");
  EXPECT_SAYS(complaint_of_opening(folder.path(), "val"), "was made as train-00000-of-00002.h5 and renamed");

  const ScratchFolder lacking;
  write_shard(lacking.path(), header(false, 20), 0, 1, 0, 10);
  EXPECT_SAYS(complaint_of_opening(lacking.path()), "hold 10 images; their headers say 20");
}

TEST(Shards, ValuesThatLeadOutsideThePixelsAreRefused) {
  struct Hostile {
    std::vector<std::int64_t> offsets;
    std::vector<std::int32_t> heights, widths, labels;
    std::string says;
  };
  const std::int64_t big = std::int64_t{1} << 62;
  const Hostile cases[] = {
      {{0, 12}, {2, 2}, {2, 2}, {0, 2}, "no error"},
      {{0, 13}, {2, 2}, {2, 2}, {0, 0}, "image 1 lies outside"},
      {{-1, 0}, {2, 2}, {2, 2}, {0, 0}, "image 0 lies outside"},
      {{0, big}, {2, 2}, {2, 2}, {0, 0}, "image 1 lies outside"},
      {{0, 0}, {2, 3}, {2, 3}, {0, 0}, "image 1 lies outside"},
      {{0, 0}, {2, 0x7fffffff}, {2, 0x7fffffff}, {0, 0}, "image 1 lies outside"},
      {{0, 0}, {2, -2}, {2, -2}, {0, 0}, "image 1 lies outside"},
      {{0, 0}, {2, 0}, {2, 2}, {0, 0}, "image 1 lies outside"},
      {{0, 0}, {2, 2}, {2, 2}, {0, 3}, "image 1 has label 3, but there are 3 classes"},
      {{0, 0}, {2, 2}, {2, 2}, {-1, 0}, "image 0 has label -1"},
  };
  for (const Hostile& c : cases) {
    const ScratchFolder folder;
    const std::string path = folder / "train-00000-of-00001.h5";
    H5File file = H5File::create(path);
    for (const auto& [name, text] : {std::pair{"format", "lockstep-shard"}, {"split", "train"}, {"fit", "short"}, {"rotate", "none"}, {"source", "s"}}) file.set_attribute(name, std::string(text));
    for (const auto& [name, value] : {std::pair{"version", 1}, {"height", 0}, {"width", 0}, {"size", 2}, {"split_images", 2}, {"images", 2}, {"shard", 0}, {"shards", 1}})
      file.set_attribute(name, std::int64_t{value});
    file.set_attribute("classes", std::vector<std::string>{"a", "b", "c"});
    file.set_attribute("mean", std::vector<double>{}), file.set_attribute("std", std::vector<double>{});
    const std::int64_t bytes = 24, n = 2;
    const std::vector<std::uint8_t> pixels(24, 7);
    const std::vector<std::uint32_t> crcs(2, crc32c(pixels.data(), 12));
    file.write("/pixels", H5Type::u8, {&bytes, 1}, pixels.data());
    file.write("/offsets", H5Type::i64, {&n, 1}, c.offsets.data());
    file.write("/heights", H5Type::i32, {&n, 1}, c.heights.data()), file.write("/widths", H5Type::i32, {&n, 1}, c.widths.data());
    file.write("/labels", H5Type::i32, {&n, 1}, c.labels.data()), file.write("/crc32c", H5Type::u32, {&n, 1}, crcs.data());
    file.write_texts("/names", std::vector<std::string>{"x", "y"});
    file.close();
    seal(path);
    EXPECT_SAYS(complaint_of_reading(folder.path()), c.says);
  }
}

// Found by the fuzz program: 2 GB were reserved for what the header says, before the images were counted.
TEST(Shards, ACountOfImagesInAHeaderTakesNoMemory) {
  const ScratchFolder folder;
  ShardHeader h = header(false, 3);
  h.split_images = std::int64_t{1} << 26;
  write_shard(folder.path(), h, 0, 1, 0, 3);
  const LoweredLimit memory(RLIMIT_AS, address_space() + (rlim_t{512} << 20));
  EXPECT_SAYS(complaint_of_opening(folder.path()), "hold 3 images; their headers say 67108864");
}

TEST(Shards, AnotherProgramsFileIsNoShard) {
  const ScratchFolder folder;
  const std::string path = folder / "train-00000-of-00001.h5";
  run_python("import sys, h5py\nh5py.File(sys.argv[1], 'w')['x'] = 1", {path});
  EXPECT_SAYS(complaint_of_opening(folder.path()), "has no seal");
  seal(path);
  EXPECT_SAYS(complaint_of_opening(folder.path()), "is no shard of images");
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
