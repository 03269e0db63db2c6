// The truth is PIL: for each file that codec_files.py writes, what PIL makes of it with the same fit, size and rotation.
#include "images/codec.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <filesystem>
#include <sstream>
#include <thread>

#include "images/resize.hpp"
#include "support/complaint.hpp"
#include "support/python.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string script(const std::string& name) { return read_file((fs::path(__FILE__).parent_path() / name).string()); }

double mean_difference(const std::string& want, const std::vector<std::uint8_t>& got) {
  double sum = 0;
  for (std::size_t i = 0; i < got.size(); ++i) sum += std::abs(double{static_cast<double>(static_cast<std::uint8_t>(want[i]))} - got[i]);
  return sum / static_cast<double>(got.size());
}

std::string complaint(const std::string& path, const DecodeOptions& options = {}) {
  try {
    decode_image(path, options);
    return "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), exit_bad_input);
    return error.what();
  }
}

class Codec : public testing::Test {
 protected:
  void SetUp() override {
    try {
      start_codec();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

/// A manifest line: file, fit, size, rotate, tolerated mean difference, height, width, file of PIL's pixels.
void expect_pils_pixels(const std::string& manifest) {
  std::istringstream lines(read_file(manifest));
  std::string file, fit, pixels;
  DecodeOptions options;
  double tolerance;
  std::int64_t height, width;
  int checked = 0;
  while (lines >> file >> fit >> options.size >> options.rotate >> tolerance >> height >> width >> pixels) {
    SCOPED_TRACE(file + " --fit " + fit + " --size " + std::to_string(options.size) + (options.rotate ? "" : " --no-rotate"));
    options.fit = fit_of(fit);
    const DecodedImage got = decode_image(file, options);
    ASSERT_EQ(std::pair(got.height, got.width), std::pair(height, width));
    EXPECT_EQ(decoded_size(file, options), std::pair(height, width));
    ASSERT_EQ(got.pixels.size(), static_cast<std::size_t>(3 * height * width));
    EXPECT_LE(mean_difference(read_file(pixels), got.pixels), tolerance);
    ++checked;
  }
  EXPECT_GT(checked, 8);
}

TEST_F(Codec, OddFilesBecomePilsRgbInEveryFit) {
  const ScratchFolder folder;
  run_python(script("codec_files.py"), {"odd", folder.path()});
  expect_pils_pixels(folder / "manifest");
}

TEST_F(Codec, ExifOrientationIsAppliedUnlessSwitchedOff) {
  const ScratchFolder folder;
  run_python(script("codec_files.py"), {"orientations", folder.path()});
  expect_pils_pixels(folder / "manifest");
}

TEST_F(Codec, RealPhotosComeOutAsFromPil) {
  const char* set = std::getenv("LOCKSTEP_TEST_DATA");
  const std::string archive = (set ? fs::path(set) : fs::path(__FILE__).parent_path() / "../../../shared/data") / "flowers350.tar.gz";
  if (!fs::exists(archive)) GTEST_SKIP() << archive << " is not here";
  const ScratchFolder folder;
  run_python(script("codec_files.py"), {"photos", folder.path(), archive});
  expect_pils_pixels(folder / "manifest");
}

TEST_F(Codec, BrokenFilesAreNamedWithTheirOwnReason) {
  const ScratchFolder folder;
  run_python(script("codec_files.py"), {"broken", folder.path()});
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) names.push_back(entry.path());
  ASSERT_GE(names.size(), 8u);
  // At once from many threads: libvips has one error text for all of them.
  std::vector<std::string> messages(4 * names.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < messages.size(); ++i) threads.emplace_back([&, i] { messages[i] = complaint(names[i % names.size()]); });
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    EXPECT_TRUE(messages[i].starts_with(names[i % names.size()] + ": ")) << names[i % names.size()] << " gave: " << messages[i];
    EXPECT_EQ(messages[i], messages[i % names.size()]);
    EXPECT_EQ(messages[i].find('\n'), std::string::npos);
  }
  EXPECT_NE(complaint(folder / "empty.jpg").find("is empty"), std::string::npos);
  EXPECT_NE(complaint(folder / "missing.jpg").find("No such file"), std::string::npos);
  EXPECT_NE(complaint(folder.path()), "no error");
}

TEST_F(Codec, ShortSideRefusesLongImages) {
  const ScratchFolder folder;
  run_python("import sys\nfrom PIL import Image\nImage.new('RGB', (170, 20), (1, 2, 3)).save(sys.argv[1])", {folder / "long.png"});
  EXPECT_NE(complaint(folder / "long.png", {.fit = Fit::short_side, .size = 10}).find("170 x 20, longer than --max-aspect 8"), std::string::npos);
  EXPECT_EQ(decode_image(folder / "long.png", {.fit = Fit::short_side, .size = 10, .max_aspect = 9}).width, 85);
  EXPECT_EQ(decode_image(folder / "long.png", {.fit = Fit::cover, .size = 10}).width, 10);
}

/// Most memory that this process has had, in MiB.
std::int64_t peak_mib() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  return use.ru_maxrss >> 10;
}

TEST_F(Codec, WhatAFewBytesClaimTakesNoMemory) {
  const ScratchFolder folder;
  run_python(script("codec_files.py"), {"claims", folder.path()});
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) names.push_back(entry.path());
  ASSERT_EQ(names.size(), 9u);
  for (const std::string& name : names) {
    ASSERT_LT(fs::file_size(name), 700u);
    for (const Fit fit : {Fit::cover, Fit::short_side, Fit::stretch, Fit::pad}) {
      const std::int64_t before = peak_mib();
      const std::string said = complaint(name, {.fit = fit, .size = 256, .max_aspect = 1e9});
      const bool is_long = name.ends_with("tall.png") || name.ends_with("wide.png");
      if (fit == Fit::pad && is_long) EXPECT_EQ(said, "no error") << name;
      else if (fit == Fit::stretch && name.ends_with("wide.png")) EXPECT_EQ(said, "no error") << name;   // one row of 40000, then 256
      else EXPECT_TRUE(said.starts_with(name + ": ")) << name << " gave: " << said;
      EXPECT_LT(peak_mib() - before, 100) << name << ", fit " << name_of(fit);
    }
  }
}

TEST_F(Codec, AnImageOfAnAspectOf60IsStillCut) {
  const ScratchFolder folder;
  run_python("import sys\nfrom PIL import Image\nImage.new('RGB', (60, 1), (1, 2, 3)).save(sys.argv[1])", {folder / "long.png"});
  for (const Fit fit : {Fit::cover, Fit::stretch, Fit::pad}) {
    const DecodedImage image = decode_image(folder / "long.png", {.fit = fit, .size = 32});
    EXPECT_EQ(std::pair(image.height, image.width), std::pair(std::int64_t{32}, std::int64_t{32}));
  }
}

// What libvips can also read by its content, whatever the file's ending says.
TEST_F(Codec, DocumentsAreNoImages) {
  const ScratchFolder folder;
  const std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"20\" height=\"20\"><rect width=\"20\" height=\"20\" fill=\"red\"/></svg>\n";
  for (const auto& [name, bytes] : {std::pair<std::string, std::string>{"a.jpg", svg}, {"b.jpg", "<?xml version=\"1.0\"?>\n" + svg}, {"c.png", "%PDF-1.4\n1 0 obj\n"}, {"d.jpg", "push graphic-context\nviewbox 0 0 9 9\n"}, {"e.jpg", "P6"}, {"f.webp", "RIFF"}}) {
    write_file(folder / name, bytes);
    for (const std::string& said : {complaint(folder / name), lockstep::complaint([&] { decoded_size(folder / name, {}); })}) {
      EXPECT_TRUE(said.starts_with((folder / name) + ": is broken or no image (it begins as none of JPEG, PNG, ")) << said;
    }
  }
}

TEST(Resize, EqualsPilsBilinearBitForBit) {
  const ScratchFolder folder;
  std::istringstream sizes(run_python(script("codec_files.py"), {"resize", folder.path()}));
  std::int64_t height, width, to_height, to_width;
  int checked = 0;
  for (std::string in, want; sizes >> in >> height >> width >> want >> to_height >> to_width; ++checked) {
    const std::string pixels = read_file(in);
    Resize resize(height, width, static_cast<double>(height), static_cast<double>(width), to_height, to_width);
    for (std::int64_t y = 0; y < height; ++y) resize.add_row(reinterpret_cast<const std::uint8_t*>(pixels.data()) + 3 * width * y);
    const std::vector<std::uint8_t> got = resize.result();
    EXPECT_TRUE(std::string(got.begin(), got.end()) == read_file(want)) << height << " x " << width << " -> " << to_height << " x " << to_width;
  }
  EXPECT_GT(checked, 30);
}

}  // namespace
}  // namespace lockstep
