// Layouts, labels, order and faults of image folders.  Classes and samples are compared with torchvision's ImageFolder where it is installed.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "convert/harness.hpp"
#include "storage/shards.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class ImageFolder : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_images()) GTEST_SKIP() << "this build reads no image files";
  }
  /// Converts IN to OUT at 8 x 8.
  Outcome convert(std::vector<std::string> options = {}) {
    std::vector<std::string> arguments = {"image-folder", in(), out(), "--size", "8"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return convert_with(arguments);
  }
  std::string in() const { return folder_ / "in"; }
  std::string out() const { return folder_ / "out"; }
  void make(const std::vector<std::string>& paths) {
    fs::create_directories(in());
    make_images(in(), paths);
  }
  /// `count` images in each of the classes a, b, c of a folder.
  static std::vector<std::string> grid(const std::string& below, int count, const std::string& classes = "abc") {
    std::vector<std::string> paths;
    for (const char c : classes)
      for (int i = 0; i < count; ++i) paths.push_back(below + c + "/" + std::to_string(i) + ".png");
    return paths;
  }
  void expect_fails(const Outcome& outcome, const std::string& words) {
    EXPECT_EQ(outcome.code, 2) << outcome.printed;
    EXPECT_TRUE(outcome.says(words)) << outcome.printed;
    EXPECT_FALSE(fs::exists(out() + "/train-00000-of-00001.h5"));
  }
  ScratchFolder folder_;
};

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::ranges::sort(lines);
  return lines;
}

TEST_F(ImageFolder, ClassesAndSamplesAreTorchvisions) {
  // Order as text: capitals before small letters, digits as characters, non-ASCII last; every ending, in any case; subfolders.
  make({"train/b10/x.png", "train/b9/x.PNG", "train/B/x.jpeg", "train/a b/x.JPEG", "train/a b/deep/er/y.jpg", "train/\xc3\xa9t\xc3\xa9/x.webp", "train/z/x.bmp",
        "train/z/y.tif", "train/z/y2.tiff", "train/z/y3.ppm", "train/z/y4.pgm", "train/z/note.txt", "train/z/.hidden.png", "val/z/x.png", "val/B/x.png"});
  const Outcome outcome = convert();
  ASSERT_EQ(outcome.code, 0) << outcome.printed;
  EXPECT_TRUE(outcome.says("1 file of ")) << outcome.printed;       // note.txt
  const auto& classes = Dataset(out(), "val").header().classes;
  EXPECT_EQ(classes, (std::vector<std::string>{"B", "a b", "b10", "b9", "z", "\xc3\xa9t\xc3\xa9"}));
  EXPECT_EQ(stored(out(), "val"), "B val/B/x.png\nz val/z/x.png\n");
  EXPECT_EQ(sorted_lines(stored(out(), "train")).size(), 11u);
  if (std::system("/usr/bin/python3 -c 'import torchvision' > /dev/null 2>&1") != 0) GTEST_SKIP() << "no torchvision to compare with";
  fs::remove(in() + "/train/z/.hidden.png");
  const std::string theirs = run_python(R"(
import os, sys
from torchvision.datasets import ImageFolder
data = ImageFolder(sys.argv[1])
for path, label in data.samples: print(data.classes[label], 'train/' + os.path.relpath(path, sys.argv[1]))
)", {in() + "/train"});
  EXPECT_EQ(sorted_lines(stored(out(), "train")), sorted_lines(theirs));
}

TEST_F(ImageFolder, TrainingOrderIsSeededAndOverAllShards) {
  std::vector<std::string> paths = grid("train/", 40);
  const std::vector<std::string> val = grid("test/", 4);
  paths.insert(paths.end(), val.begin(), val.end());
  make(paths);
  std::vector<std::string> orders;
  for (const char* seed : {"0", "0", "1"}) {
    fs::remove_all(out());
    ASSERT_EQ(convert({"--seed", seed, "--shards", "4"}).code, 0);
    orders.push_back(stored(out(), "train"));
    EXPECT_EQ(sorted_lines(orders.back()).size(), 120u);
  }
  EXPECT_EQ(orders[0], orders[1]);
  EXPECT_NE(orders[0], orders[2]);
  std::istringstream first_shard(orders[0]);
  std::set<std::string> classes;
  for (int i = 0; i < 30; ++i) {
    std::string name, path;
    first_shard >> name >> path;
    classes.insert(name);
  }
  EXPECT_EQ(classes.size(), 3u);
  const std::string kept = stored(out(), "val");                    // test/ became val, in sorted order
  EXPECT_TRUE(std::ranges::is_sorted(sorted_lines(kept)));
  EXPECT_TRUE(kept.starts_with("a test/a/0.png\na test/a/1.png\n")) << kept;
}

TEST_F(ImageFolder, ValFractionCutsEachClassTheSameWayEveryTime) {
  make(grid("", 11));
  make(grid("", 1, "d"));
  expect_fails(convert(), "Give --val-fraction 0.2");
  ASSERT_EQ(convert({"--val-fraction", "0.2"}).code, 0);
  const std::string val = stored(out(), "val");
  EXPECT_EQ(sorted_lines(val).size(), 6u);                          // round(0.2 * 11) = 2 of a, b, c; d keeps its only one for training
  EXPECT_EQ(sorted_lines(stored(out(), "train")).size(), 28u);
  std::vector<std::string> all = sorted_lines(val + stored(out(), "train"));
  EXPECT_EQ(std::ranges::unique(all).size(), 0u);
  fs::remove_all(out());
  ASSERT_EQ(convert({"--val-fraction", "0.2"}).code, 0);
  EXPECT_EQ(stored(out(), "val"), val);
  fs::remove_all(out());
  ASSERT_EQ(convert({"--val-fraction", "0"}).code, 0);
  EXPECT_EQ(splits_in(out()), std::vector<std::string>{"train"});
}

TEST_F(ImageFolder, AFlatValidationFolderTakesItsClassesFromTheGroundTruth) {
  make(grid("train/", 3));
  make({"val/ILSVRC_2.JPEG", "val/ILSVRC_1.JPEG", "val/ILSVRC_3.JPEG"});
  expect_fails(convert(), "Give --val-labels");
  write_file(folder_ / "gt", "3\n1\n3\n");
  write_file(folder_ / "map", "c\nb\na\n");
  expect_fails(convert({"--val-labels", folder_ / "gt"}), "class number 3 is not in 0..2");
  ASSERT_EQ(convert({"--val-labels", folder_ / "gt", "--val-label-names", folder_ / "map"}).code, 0);
  EXPECT_EQ(stored(out(), "val"), "a val/ILSVRC_1.JPEG\nc val/ILSVRC_2.JPEG\na val/ILSVRC_3.JPEG\n");

  fs::rename(in() + "/val", folder_ / "elsewhere");                 // val somewhere else
  fs::remove_all(out());
  ASSERT_EQ(convert({"--val-dir", folder_ / "elsewhere", "--val-labels", folder_ / "gt", "--val-label-names", folder_ / "map"}).code, 0);
  EXPECT_TRUE(stored(out(), "val").starts_with("a elsewhere/ILSVRC_1.JPEG\n"));

  write_file(folder_ / "pairs", "ILSVRC_3.JPEG dog\nILSVRC_1.JPEG cat\nILSVRC_2.JPEG dog\n");   // the flat folder alone
  ASSERT_EQ(convert_with({"image-folder", folder_ / "elsewhere", folder_ / "flat", "--size", "8", "--val-labels", folder_ / "pairs"}).code, 0);
  EXPECT_EQ(stored(folder_ / "flat", "val"), "cat ILSVRC_1.JPEG\ndog ILSVRC_2.JPEG\ndog ILSVRC_3.JPEG\n");
}

TEST_F(ImageFolder, HiddenEmptyAndLoopingFoldersDoNoHarm) {
  make(grid("train/", 2));
  make(grid("val/", 1, "ab"));
  make({"train/.ipynb_checkpoints/x.png", "train/a/.git/x.png", "val/.cache/x.png"});
  fs::create_directories(in() + "/train/empty/below");
  fs::create_directories(in() + "/val/c");
  fs::create_directory_symlink("..", in() + "/train/a/up");
  fs::create_directory_symlink(in() + "/train/a", in() + "/train/linked");
  fs::create_symlink("nowhere.png", in() + "/train/b/dangling.png");
  const Outcome outcome = convert();
  ASSERT_EQ(outcome.code, 0) << outcome.printed;
  EXPECT_EQ(Dataset(out(), "train").header().classes, (std::vector<std::string>{"a", "b", "c", "empty", "linked"}));
  EXPECT_EQ(stored(out(), "val"), "a val/a/0.png\nb val/b/0.png\n");
  EXPECT_TRUE(outcome.says("class empty has no images"));
  EXPECT_TRUE(outcome.says("class c has no images"));
  EXPECT_TRUE(outcome.says("back to a folder above"));
  EXPECT_TRUE(outcome.says("dangling.png: cannot be opened: No such file"));
  EXPECT_TRUE(sorted_lines(stored(out(), "train")).size() >= 8u);   // linked holds a's two again
}

TEST_F(ImageFolder, WhatIsNoDataSetIsExplained) {
  make({"dataset/train/a/1.png", "dataset/train/b/1.png"});
  expect_fails(convert({"--val-fraction", "0.5"}), "one class folder, dataset; a classifier needs at least two classes. Is the data set one level down?");
  fs::remove_all(in());
  make({"1.png", "2.png"});
  expect_fails(convert(), "has no class folders");
  make(grid("train/", 1));
  make(grid("val/", 1, "abd"));
  expect_fails(convert(), "class d is not among the training classes");
  expect_fails(convert({"--val-fraction", "0.2"}), "--val-fraction is for a folder without validation images");
}

TEST_F(ImageFolder, ABrokenImageIsNamedAndLeftOutOrEndsAStrictConversion) {
  make(grid("train/", 10));
  make(grid("val/", 2));
  write_file(in() + "/train/b/3.png", read_file(in() + "/train/b/3.png").substr(0, 60));
  write_file(in() + "/val/c/1.png", "");
  expect_fails(convert({"--strict"}), "train/b/3.png");
  const Outcome outcome = convert({"--shards", "3"});
  ASSERT_EQ(outcome.code, 0) << outcome.printed;
  EXPECT_TRUE(outcome.says("2 images were broken and left out")) << outcome.printed;
  const std::string report = read_file(out() + "/convert-report.txt");
  EXPECT_NE(report.find("train/b/3.png: is broken"), std::string::npos);
  EXPECT_NE(report.find("val/c/1.png: is empty"), std::string::npos);
  EXPECT_EQ(Dataset(out(), "train").size(), 29);
  EXPECT_EQ(Dataset(out(), "val").size(), 5);
  for (int i = 0; i < 3; ++i) EXPECT_NE(inspect_shard(out() + "/" + shard_name("train", i, 3)).find("of the split's 29"), std::string::npos);
}

TEST_F(ImageFolder, ASplitWithoutAnyReadableImageIsAnError) {
  make(grid("train/", 2));
  make(grid("val/", 1));
  for (const char c : {'a', 'b', 'c'}) write_file(in() + "/val/" + c + "/0.png", "no image");
  expect_fails(convert(), "none of its 3 images can be read");
}

TEST_F(ImageFolder, PhotosKeepTheirOwnSizesWithFitShort) {
  const std::string archive = test_data("flowers350.tar.gz");
  if (archive.empty()) GTEST_SKIP() << "../shared/data/flowers350.tar.gz is not here";
  run_python("import sys, tarfile\ntarfile.open(sys.argv[1]).extractall(sys.argv[2])", {archive, folder_.path()});
  const std::string photos = folder_ / "flowers350/dataset";
  for (const char* threads : {"1", "3"})
    ASSERT_EQ(convert_with({"image-folder", photos, folder_ / threads, "--fit", "short", "--size", "64", "--threads", threads, "--shards", "2", "--no-rotate"}).code, 0);
  for (const char* file : {"/train-00000-of-00002.h5", "/train-00001-of-00002.h5", "/val-00001-of-00002.h5"})
    EXPECT_TRUE(read_file(folder_ / "1" + file) == read_file(folder_ / "3" + file)) << file;
  EXPECT_EQ(run_python(R"(
import glob, os, sys, h5py, numpy as np
from PIL import Image
photos, out = sys.argv[1:]
total, square, pixels = np.zeros(3), np.zeros(3), 0
for path in sorted(glob.glob(out + '/*.h5')):
    with h5py.File(path) as f:
        for name, offset, h, w in zip(f['names'], f['offsets'], f['heights'], f['widths']):
            image = Image.open(os.path.join(photos, name.decode())).convert('RGB')
            W, H = image.size
            size = (64, int(64 * H / W)) if W <= H else (int(64 * W / H), 64)
            assert size == (w, h), name
            got = f['pixels'][offset:offset + 3 * h * w].reshape(h, w, 3).astype(int)
            want = np.asarray(image.resize(size, Image.BILINEAR)).astype(int)
            assert abs(got - want).mean() <= 1, (name, abs(got - want).mean())
            if 'train' in path: total += got.sum((0, 1)); square += (got ** 2).sum((0, 1)); pixels += h * w
        mean, std = f.attrs['mean'], f.attrs['std']
np.testing.assert_allclose(mean, total / pixels / 255, rtol=1e-12)
np.testing.assert_allclose(std, np.sqrt(square / pixels - (total / pixels) ** 2) / 255, rtol=1e-9)
print('ok')
)", {photos, folder_ / "1"}), "ok\n");
}

}  // namespace
}  // namespace lockstep
