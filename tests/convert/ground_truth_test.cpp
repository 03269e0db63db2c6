#include "convert/ground_truth.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "support/scratch.hpp"

namespace lockstep {
namespace {

const std::vector<std::string> images = {"v1.JPEG", "v2.JPEG", "v3.JPEG"}, classes = {"n01", "n02", "n03 x", "n04"};
using Labels = std::vector<std::int32_t>;

class GroundTruth : public testing::Test {
 protected:
  Labels read(const std::string& labels, const std::string& names = "") {
    write_file(folder_ / "gt.txt", labels);
    if (!names.empty()) write_file(folder_ / "map.txt", names);
    return read_ground_truth(images, classes, folder_ / "gt.txt", names.empty() ? "" : folder_ / "map.txt");
  }
  std::string complaint(const std::string& labels, const std::string& names = "") {
    try {
      read(labels, names);
      return "no error";
    } catch (const Error& error) {
      return error.what();
    }
  }
  ScratchFolder folder_;
};

TEST_F(GroundTruth, ALineIsANameOrANumberFromZeroOrIlsvrcsIdThroughItsMap) {
  EXPECT_EQ(read("n04\nn01\nn03 x\n"), (Labels{3, 0, 2}));
  EXPECT_EQ(read("3\r\n0\r\n1\r\n\n"), (Labels{3, 0, 1}));
  EXPECT_EQ(read("1\n4\n2\n", "n04 tench, Tinca tinca\nn01\nn02\nn03 x\n"), (Labels{3, 2, 0}));
  EXPECT_EQ(read("v3.JPEG n01\nval/v1.JPEG 3\nv2.JPEG n03 x\n"), (Labels{3, 2, 0}));
}

TEST_F(GroundTruth, WhatDoesNotFitIsNamedByItsLine) {
  EXPECT_NE(complaint("n04\nn01\n").find("has 2 lines for 3 images"), std::string::npos);
  EXPECT_NE(complaint("n04\nn09\nn01\n").find("gt.txt, line 2: \"n09\" is neither a class"), std::string::npos);
  EXPECT_NE(complaint("4\n0\n1\n").find("line 1: class number 4 is not in 0..3"), std::string::npos);
  EXPECT_NE(complaint("3\n2\n1\n").find("Give --val-label-names"), std::string::npos);        // may be ILSVRC's IDs
  EXPECT_NE(complaint("0\n2\n1\n", "n01\nn02\n").find("class number 0 is not in 1..2"), std::string::npos);
  EXPECT_NE(complaint("1\n1\n1\n", "n01\nn09\n").find("map.txt, line 2: \"n09\" is no class"), std::string::npos);
  EXPECT_NE(complaint("v1.JPEG n01\nv1.JPEG n02\nv2.JPEG n01\n").find("line 2: v1.JPEG stands there twice"), std::string::npos);
  EXPECT_NE(complaint("v1.JPEG n01\nv9.JPEG n02\nv2.JPEG n01\n").find("line 2: there is no image v9.JPEG"), std::string::npos);
}

TEST_F(GroundTruth, NamesAloneGiveTheClassesOfAFlatFolder) {
  write_file(folder_ / "a", "v1.JPEG wild dog\nv2.JPEG cat\nv3.JPEG wild dog\n");
  EXPECT_EQ(classes_in(images, folder_ / "a", ""), (std::vector<std::string>{"cat", "wild dog"}));
  write_file(folder_ / "b", "2\n1\n");
  EXPECT_THROW(classes_in(images, folder_ / "b", ""), Error);
  EXPECT_EQ(classes_in(images, folder_ / "b", folder_ / "a"), (std::vector<std::string>{"v1.JPEG", "v2.JPEG", "v3.JPEG"}));
}

}  // namespace
}  // namespace lockstep
