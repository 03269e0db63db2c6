// shards: what is damaged, missing or mixed up is noticed and named.
#include "storage/shards.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "storage/hdf5.hpp"
#include "storage/sealed_file.hpp"
#include "support/python.hpp"
#include "support/storage_shards.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

TEST(ShardDamage, TruncationAtEachPercentIsNoticed) {
  const ScratchFolder folder;
  write_set(folder.path(), true, 200, 1);
  const std::string path = folder / "train-00000-of-00001.h5", whole = read_file(path);
  for (std::size_t percent = 0; percent < 100; ++percent) {
    write_file(path, std::string_view(whole).substr(0, whole.size() * percent / 100));
    EXPECT_SAYS(complaint_of_opening(folder.path()), "train-00000-of-00001.h5: ");
  }
}

TEST(ShardDamage, TwoHundredRandomFlippedBitsAreEachNoticed) {
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

TEST(ShardDamage, EveryFlippedByteOfAnImageIsNoticedAndTheImageNamed) {
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

TEST(ShardDamage, DamagedImagesAreToldAsRanges) {
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

TEST(ShardDamage, ADamagedImageIsNamedAndOthersAreStillRead) {
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

TEST(ShardDamage, AFileThatShrinksWhileItIsReadIsAnError) {
  const ScratchFolder folder;
  write_set(folder.path(), false, 20, 1);
  const Dataset data(folder.path(), "train");
  std::vector<std::uint8_t> pixels(90);
  data.read(0, pixels.data());
  fs::resize_file(folder / "train-00000-of-00001.h5", static_cast<std::uintmax_t>(data.records()[10].offset));
  EXPECT_SAYS(complaint([&] { data.read(10, pixels.data()); }), "image 10 (its name cannot be read) lies past the end");
}

TEST(ShardDamage, AnIncompleteOrMixedFolderIsExplained) {
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

TEST(ShardDamage, ACountInAFilesNameTakesNoMemory) {
  const ScratchFolder folder;
  write_file(folder / "train-00001-of-2000000000.h5", "");
  const LoweredLimit memory(RLIMIT_AS, address_space() + (rlim_t{128} << 20));
  EXPECT_SAYS(complaint_of_opening(folder.path()), "train-00000-of-2000000000.h5 and 1999999998 more of 2000000000 shards are missing");
}

TEST(ShardDamage, ShardsThatDoNotBelongTogetherAreNamed) {
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

TEST(ShardDamage, ValuesThatLeadOutsideThePixelsAreRefused) {
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
TEST(ShardDamage, ACountOfImagesInAHeaderTakesNoMemory) {
  const ScratchFolder folder;
  ShardHeader h = header(false, 3);
  h.split_images = std::int64_t{1} << 26;
  write_shard(folder.path(), h, 0, 1, 0, 3);
  const LoweredLimit memory(RLIMIT_AS, address_space() + (rlim_t{512} << 20));
  EXPECT_SAYS(complaint_of_opening(folder.path()), "hold 3 images; their headers say 67108864");
}

TEST(ShardDamage, AnotherProgramsFileIsNoShard) {
  const ScratchFolder folder;
  const std::string path = folder / "train-00000-of-00001.h5";
  run_python("import sys, h5py\nh5py.File(sys.argv[1], 'w')['x'] = 1", {path});
  EXPECT_SAYS(complaint_of_opening(folder.path()), "has no seal");
  seal(path);
  EXPECT_SAYS(complaint_of_opening(folder.path()), "is no shard of images");
}

}  // namespace
}  // namespace lockstep
