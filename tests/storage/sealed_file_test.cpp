#include "storage/sealed_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "storage/hdf5.hpp"
#include "support/complaint.hpp"
#include "support/python.hpp"

namespace lockstep {
namespace {

std::uint32_t crc_of(const std::string& bytes) { return crc32c(bytes.data(), bytes.size()); }

TEST(Crc32c, GivesTheReferenceValuesOfRfc3720) {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i), falling += static_cast<char>(31 - i);
  const std::string read_command("\x01\xc0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x14\0\0\0\0\0\x04\0\0\0\0\x14\0\0\0\x18\x28\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", 48);
  EXPECT_EQ(crc_of("123456789"), 0xe3069283u);
  EXPECT_EQ(crc_of(""), 0u);
  EXPECT_EQ(crc_of(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc_of(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc_of(rising), 0x46dd794eu);
  EXPECT_EQ(crc_of(falling), 0x113fdb5cu);
  EXPECT_EQ(crc_of(read_command), 0xd9963a56u);
}

TEST(Crc32c, InstructionTableAndPiecesAgreeAtEveryLengthAndAlignment) {
  std::vector<std::uint32_t> words(64);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = random_bits(1, Purpose::bench, 0, i)[0];
  const auto* bytes = reinterpret_cast<const char*>(words.data());
  for (std::size_t begin = 0; begin < 9; ++begin)
    for (std::size_t length = 0; length < 200; ++length) {
      const std::uint32_t whole = crc32c(bytes + begin, length);
      ASSERT_EQ(crc32c_by_table(bytes + begin, length), whole);
      ASSERT_EQ(crc32c(bytes + begin + length / 3, length - length / 3, crc32c(bytes + begin, length / 3)), whole);
    }
}

/// A sealed HDF5 file of about 20 KB.  [begin, end) is left out.
std::string make_sealed(const std::string& path, bool leave_out = false) {
  std::vector<float> values(5000, 1.5f);
  H5File file = H5File::create(path);
  const std::int64_t count = 5000;
  file.write("/model/weight", H5Type::f32, {&count, 1}, values.data());
  file.set_attribute("format", std::string("test"));
  const std::int64_t begin = file.info("/model/weight").file_offset;
  file.close();
  seal(path, leave_out ? ByteRange{begin, begin + 20000} : ByteRange{});
  return read_file(path);
}

TEST(SealedFile, AWholeFileIsWholeAndH5pyOpensIt) {
  const ScratchFolder folder;
  make_sealed(folder / "a.h5");
  EXPECT_EQ(damage_of(folder / "a.h5"), "");
  EXPECT_NO_THROW(verify_seal(folder / "a.h5"));
  EXPECT_EQ(run_python("import sys, h5py\nf = h5py.File(sys.argv[1])\nprint(f['model/weight'][:].sum(), f.attrs['format'])", {folder / "a.h5"}), "7500.0 test\n");
}

TEST(SealedFile, LibhdfReadsTheVerifiedBytesAloneWhateverBecomesOfTheFile) {
  const ScratchFolder folder;
  for (const bool leave_out : {false, true}) {
    const std::string path = folder / (leave_out ? "b.h5" : "a.h5"), whole = make_sealed(path, leave_out);
    SealedBytes bytes = read_sealed(path);
    ASSERT_EQ(bytes.bytes().size(), whole.size());
    std::filesystem::remove(path);
    const H5File file = H5File::open(path, std::move(bytes));
    EXPECT_EQ(file.text_attribute("format"), "test");
    const H5DatasetInfo info = file.info("/model/weight");
    EXPECT_EQ(info.shape, std::vector<std::int64_t>{5000});
    float first = 0;
    std::memcpy(&first, whole.data() + info.file_offset, sizeof first);
    EXPECT_EQ(first, 1.5f);
    std::vector<float> values(5000, -1);
    file.read("/model/weight", H5Type::f32, values.data(), values.size());
    EXPECT_EQ(values, std::vector<float>(5000, leave_out ? 0.f : 1.5f));
    EXPECT_NE(complaint([&] { file.read("/none", H5Type::f32, values.data(), values.size()); }).find(path + ": has no dataset /none"), std::string::npos);
  }
  // Several at once are several files to the library, in threads too.
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&folder, t] {
      for (int round = 0; round < 25; ++round) {
        const std::string path = folder / (std::to_string(t) + "-" + std::to_string(round));
        const std::int64_t count = 10 + t, number = 100 * t + round;
        const std::vector<float> values(static_cast<std::size_t>(count), static_cast<float>(number));
        H5File file = H5File::create(path);
        file.write("/x", H5Type::f32, {&count, 1}, values.data());
        file.set_attribute("number", number);
        file.close();
        seal(path);
        const H5File first = H5File::open(path, read_sealed(path)), second = H5File::open(path, read_sealed(path));
        for (const H5File* read : {&first, &second}) {
          std::vector<float> back(values.size());
          read->read("/x", H5Type::f32, back.data(), back.size());
          EXPECT_EQ(back, values);
          EXPECT_EQ(read->integer_attribute("number"), number);
        }
      }
    });
  threads.clear();
  make_sealed(folder / "c.h5");
  std::filesystem::resize_file(folder / "c.h5", 9000);
  EXPECT_NE(complaint([&] { read_sealed(folder / "c.h5"); }).find("c.h5: is truncated: it has 9000 of "), std::string::npos);
}

TEST(SealedFile, WhatWouldTakeTooMuchMemoryIsVerifiedAndReadAgain) {
  const ScratchFolder folder;
  const std::int64_t count = SealedBytes::most / 4;
  {
    H5File file = H5File::create(folder / "large.h5");
    file.write("/x", H5Type::f32, {&count, 1}, nullptr);         // a hole
    file.close();
  }
  seal(folder / "large.h5");
  SealedBytes bytes = read_sealed(folder / "large.h5");
  EXPECT_FALSE(bytes);
  EXPECT_EQ(H5File::open(folder / "large.h5", std::move(bytes)).info("/x").shape, std::vector<std::int64_t>{count});
}

TEST(SealedFile, TruncationAtEachPercentIsNoticed) {
  const ScratchFolder folder;
  const std::string whole = make_sealed(folder / "a.h5");
  for (std::size_t percent = 0; percent < 100; ++percent) {
    write_file(folder / "a.h5", std::string_view(whole).substr(0, whole.size() * percent / 100));
    const std::string damage = damage_of(folder / "a.h5");
    EXPECT_NE(damage, "") << percent;
    EXPECT_TRUE(percent < 2 || damage.find("is truncated: it has ") != std::string::npos) << damage;   // 2 %: the superblock is whole
    EXPECT_THROW(verify_seal(folder / "a.h5"), Error);
  }
  for (std::size_t lost = 1; lost < 100; ++lost) {
    write_file(folder / "a.h5", std::string_view(whole).substr(0, whole.size() - lost));
    EXPECT_NE(damage_of(folder / "a.h5"), "") << lost;
  }
}

TEST(SealedFile, EveryFlippedBitIsNoticed) {
  const ScratchFolder folder;
  const std::string whole = make_sealed(folder / "a.h5");
  const auto flip = [&](std::size_t bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    write_file(folder / "a.h5", damaged);
    EXPECT_NE(damage_of(folder / "a.h5"), "") << bit;
  };
  for (std::uint64_t i = 0; i < 200; ++i) flip(below(whole.size() * 8, random_bits(2, Purpose::bench, 0, i)[0], random_bits(2, Purpose::bench, 0, i)[1]));
  for (std::size_t bit = (whole.size() - 48) * 8; bit < whole.size() * 8; ++bit) flip(bit);   // all of the trailer
}

TEST(SealedFile, TheRangeLeftOutIsNotCovered) {
  const ScratchFolder folder;
  std::string whole = make_sealed(folder / "a.h5", true);
  const std::size_t inside = whole.find(std::string("\0\0\xc0\x3f\0\0\xc0\x3f", 8));   // 1.5f twice
  whole[inside + 100] ^= 1;
  write_file(folder / "a.h5", whole);
  EXPECT_EQ(damage_of(folder / "a.h5"), "");
  whole[inside - 1] ^= 1;
  write_file(folder / "a.h5", whole);
  EXPECT_EQ(damage_of(folder / "a.h5"), "differs from its checksum");
}

TEST(SealedFile, WhatIsNoSealedFileIsSaidToBeWhatItIs) {
  const ScratchFolder folder;
  const std::string whole = make_sealed(folder / "a.h5");
  const auto damage = [&](const std::string& bytes) {
    write_file(folder / "b.h5", bytes);
    return damage_of(folder / "b.h5");
  };
  EXPECT_EQ(damage_of(folder / "missing.h5"), "does not exist");
  EXPECT_EQ(damage_of(folder.path()), "is a folder");
  EXPECT_EQ(damage_of("/dev/null"), "is no regular file");
  mkfifo((folder / "pipe").c_str(), 0600);
  EXPECT_EQ(damage_of(folder / "pipe"), "is no regular file");
  EXPECT_EQ(damage(""), "is empty");
  EXPECT_NE(damage("x").find("has no seal and is no HDF5 file"), std::string::npos);
  EXPECT_NE(damage(std::string(100000, 'x')).find("has no seal and is no HDF5 file"), std::string::npos);
  EXPECT_NE(damage(whole + "x").find("has no seal"), std::string::npos);
  EXPECT_NE(damage(whole.substr(0, whole.size() - 48) + std::string(48, 'y')).find("has no seal: it was not written to its end"), std::string::npos);
  EXPECT_EQ(damage("more" + whole), "has a damaged seal");
  EXPECT_NE(damage(whole.substr(48)).find("is truncated"), std::string::npos);   // the beginning lost
  for (std::uint64_t i = 0; i < 200; ++i) {   // any bytes, ending as a trailer does
    std::string garbage(48 + i, '\0');
    for (std::size_t k = 0; k < garbage.size(); ++k) garbage[k] = static_cast<char>(random_bits(9, Purpose::bench, i, k)[0]);
    garbage.replace(garbage.size() - 48, 8, "LOCKSEAL");
    EXPECT_NE(damage(garbage), "");
  }
  try {
    verify_seal(folder / "missing.h5");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), (folder / "missing.h5") + ": does not exist. Name a file of lockstep's.");
  }
}

TEST(SealedFile, TicksComeWithEachBlock) {
  const ScratchFolder folder;
  write_file(folder / "a", std::string((3 << 20) + 1, 'a'));
  int ticks = 0;
  seal(folder / "a", {}, [&] { ++ticks; });
  EXPECT_EQ(ticks, 5);                     // four blocks are read, one piece is brought to disk
  EXPECT_EQ(damage_of(folder / "a", [&] { ++ticks; }), "");
  EXPECT_EQ(ticks, 9);
}

TEST(SealedFile, PublishReplacesWhatWasThere) {
  const ScratchFolder folder;
  write_file(folder / "a", "old"), write_file(folder / "a.partial", "new");
  publish(folder / "a.partial", folder / "a");
  EXPECT_EQ(read_file(folder / "a"), "new");
  EXPECT_FALSE(std::filesystem::exists(folder / "a.partial"));
  EXPECT_THROW(publish(folder / "a.partial", folder / "a"), Error);
  EXPECT_THROW(publish(folder / "a", folder / "no/such/folder"), Error);
  EXPECT_EQ(read_file(folder / "a"), "new");
}

TEST(SealedFile, FreeBytesAreThoseOfTheNearestFolderThatExists) {
  const ScratchFolder folder;
  const std::int64_t there = free_bytes(folder.path()), below_it = free_bytes(folder / "not/yet/made");
  EXPECT_GT(there, 0);
  EXPECT_NEAR(static_cast<double>(below_it), static_cast<double>(there), 0.2 * static_cast<double>(there) + 1e9);   // others write too
  EXPECT_GT(free_bytes("relative_and_missing"), 0);
}

}  // namespace
}  // namespace lockstep
