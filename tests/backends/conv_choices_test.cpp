// conv_choices: what is written is read again, by earlier and later versions too.
#include "backends/conv_choices.hpp"

#include <gtest/gtest.h>

namespace lockstep::test {
namespace {

TEST(ConvChoices, TextReadsBackAndLinesOfEarlierVersionsHaveAWorkspaceThatIsNotKnown) {
  ConvChoices choices;
  choices.read("62 3=1\tGPU, cuDNN 1: forward of a\n\tGPU, cuDNN 1: forward, with sums, of a\t0\nno choice at all\n7\tGPU, cuDNN 1: forward of b\t4096\ndirect\tGPU, cuDNN 1: forward, with sums, of b\t0\t128\n");
  EXPECT_EQ(choices.find("GPU, cuDNN 1: forward of a")->way, "62 3=1");
  EXPECT_EQ(choices.find("GPU, cuDNN 1: forward of a")->workspace_bytes, -1);
  EXPECT_EQ(choices.find("GPU, cuDNN 1: forward, with sums, of a")->way, "");
  EXPECT_EQ(choices.find("GPU, cuDNN 1: forward of b")->workspace_bytes, 4096);
  EXPECT_EQ(choices.find("GPU, cuDNN 1: forward, with sums, of b")->sum_parts, 128);
  EXPECT_EQ(choices.find("GPU, cuDNN 2: forward of b"), nullptr);
  ConvChoices again;
  again.read(choices.text());
  EXPECT_EQ(again.text(), choices.text());
  choices.add("GPU, cuDNN 1: forward of a", {"62 3=1", 128});
  EXPECT_NE(choices.text().find("62 3=1\tGPU, cuDNN 1: forward of a\t128\t0\n"), std::string::npos);
}

// A line that was damaged must neither plan memory nor be kept.
TEST(ConvChoices, NumbersThatNoLibraryGivesMakeALineNone) {
  for (const char* numbers : {"-1", "-1\t0", "x", "", "1.5", "0x10", " 5", "99999999999999999999", "9223372036854775807", "4096\t-1", "4096\t9223372036854775807", "4096\tx", "4096\t1\t"}) {
    ConvChoices choices;
    choices.read(std::string("7\tGPU, cuDNN 1: forward of a\t") + numbers + "\n");
    EXPECT_EQ(choices.find_on_any_device("forward of a"), nullptr) << numbers;
    EXPECT_EQ(choices.text(), "") << numbers;
  }
}

TEST(ConvChoices, OnAnyDeviceTheLargestWorkspaceIsTakenAndWhatIsMissingRemembered) {
  ConvChoices choices;
  choices.add("A, cuDNN 1: forward of a", {"1", 10}), choices.add("B, cuDNN 1: forward of a", {"2", 30}), choices.add("C, cuDNN 1: forward of a", {"3", 20});
  choices.add("A, cuDNN 1: forward of b", {"", 0}), choices.add("B, cuDNN 1: forward of b", {"4", 0});
  choices.add("A, cuDNN 1: forward of old", {"5", -1});
  EXPECT_EQ(choices.find_on_any_device("forward of a")->workspace_bytes, 30);
  EXPECT_EQ(choices.find_on_any_device("forward of b")->way, "4");
  EXPECT_TRUE(choices.are_complete());
  EXPECT_EQ(choices.find_on_any_device("forward of old"), nullptr);
  EXPECT_FALSE(choices.are_complete());
}

}  // namespace
}  // namespace lockstep::test
