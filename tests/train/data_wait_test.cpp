#include "train/data_wait.hpp"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

TEST(DataWait, TheRankThatWaitedMostIsTold) {
  std::vector<std::string> lines;
  for (int rank = 0; rank < 3; ++rank) lines.push_back(to_line({.seconds = 10.5, .waited = rank == 1 ? 4.25 : 0.5, .read = 20, .who = "rank " + std::to_string(rank) + " on node17"}));
  const DataWait longest = longest_wait(lines);
  EXPECT_EQ(longest.who, "rank 1 on node17");
  EXPECT_EQ(longest.waited, 4.25);
  EXPECT_EQ(longest.seconds, 10.5);
  EXPECT_EQ(longest.read, 20);
}

TEST(DataWait, OnlyWhatPassesFivePercentIsWorthALine) {
  const DataConfig config;
  EXPECT_EQ(data_advice({.seconds = 100, .waited = 5, .read = 190, .who = ""}, config, 1 << 30, true), "");
  EXPECT_NE(data_advice({.seconds = 100, .waited = 5.1, .read = 190, .who = ""}, config, 1 << 30, true), "");
}

TEST(DataWait, TheSettingThatHelpsIsNamed) {
  DataConfig config;                       // two readers
  const DataWait busy{.seconds = 100, .waited = 40, .read = 190, .who = "rank 1 on node17"}, idle{.seconds = 100, .waited = 40, .read = 60, .who = "rank 1 on node17"};
  const std::string all = data_advice(busy, config, std::size_t{3} << 29, true);
  EXPECT_EQ(all, "data waits: 40 % of the time rank 1 on node17 waited for images, while its 2 readers read 95 % of the time. Raise data.readers (2 now), "
                 "or set data.stage to a folder of the nodes' local disks, or data.cache to \"host\" (1.5 GiB a rank)");
  EXPECT_SAYS(data_advice(idle, config, 0, true), "read 30 % of the time. Raise data.slots (3 now)");
  EXPECT_EQ(data_advice(busy, config, 0, false).find("data.cache"), std::string::npos);
  config.stage = "/scratch";
  EXPECT_EQ(data_advice(busy, config, 0, true).find("data.stage"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
