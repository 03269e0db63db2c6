// Which GPU each rank takes, under every way in which a launcher makes GPUs visible.
#include <gtest/gtest.h>

#include "comm/communicator.hpp"

namespace lockstep {
namespace {

using Seen = std::vector<std::vector<std::string>>;

TEST(AssignGpus, AllVisibleToAllGoInRankOrderOnEachHost) {
  EXPECT_EQ(assign_gpus(Seen{{"a 0", "a 1"}, {"a 0", "a 1"}, {"b 0", "b 1"}, {"b 0", "b 1"}}), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(assign_gpus(Seen{{"a 0", "a 1", "a 2", "a 3"}, {"a 0", "a 1", "a 2", "a 3"}}), (std::vector<int>{0, 1}));   // ranks that leave GPUs idle
}

TEST(AssignGpus, OneOrSomeVisibleToEach) {
  EXPECT_EQ(assign_gpus(Seen{{"a 2"}, {"a 0"}, {"a 1"}}), (std::vector<int>{0, 0, 0}));                                    // --gpus-per-task=1
  EXPECT_EQ(assign_gpus(Seen{{"a 0", "a 1"}, {"a 2", "a 3"}, {"a 4", "a 5"}}), (std::vector<int>{0, 0, 0}));               // --gpus-per-task=2
  EXPECT_EQ(assign_gpus(Seen{{"a 0", "a 1"}, {"a 0", "a 1"}, {"a 2", "a 3"}, {"a 2", "a 3"}}), (std::vector<int>{0, 1, 0, 1}));   // --gpu-bind=closest
}

TEST(AssignGpus, ARankThatSeesMoreMakesRoom) {
  EXPECT_EQ(assign_gpus(Seen{{"a 0", "a 1"}, {"a 0"}}), (std::vector<int>{1, 0}));
  EXPECT_EQ(assign_gpus(Seen{{"a 0", "a 1"}, {"a 1", "a 2"}, {"a 0"}}), (std::vector<int>{1, 1, 0}));
}

TEST(AssignGpus, WhereThereAreTooFewTheLastGetNone) {
  EXPECT_EQ(assign_gpus(Seen{{"a 0"}, {"a 0"}}), (std::vector<int>{0, -1}));
  EXPECT_EQ(assign_gpus(Seen{{"a 0", "a 1"}, {"a 0", "a 1"}, {"a 0", "a 1"}}), (std::vector<int>{0, 1, -1}));
  EXPECT_EQ(assign_gpus(Seen{{}, {"a 0"}}), (std::vector<int>{-1, 0}));
}

}  // namespace
}  // namespace lockstep
