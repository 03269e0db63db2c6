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

std::vector<RankPlace> places(const std::string& host, int ranks, int threads, int cpus, bool is_bound) {
  std::vector<RankPlace> made;
  for (int r = 0; r < ranks; ++r) {
    RankPlace place{.host = host, .threads = threads, .cpus = {}};
    for (int c = is_bound ? r * cpus / ranks : 0; c < (is_bound ? (r + 1) * cpus / ranks : cpus); ++c) place.cpus.push_back(c);
    made.push_back(place);
  }
  return made;
}

TEST(DescribePlaces, ThreadsThatFitAreSaidAlone) {
  EXPECT_EQ(describe_places(places("a", 8, 8, 64, false)), "ranks 0-7: a, 8 threads each");
  EXPECT_EQ(describe_places(places("a", 8, 8, 64, true)), "ranks 0-7: a, 8 threads each");
  EXPECT_EQ(describe_places(places("a", 1, 64, 64, false)), "rank 0: a, 64 threads");
  EXPECT_EQ(describe_places({}), "");
}

TEST(DescribePlaces, WithOmpNumThreadsUnsetTheRightNumberIsSaid) {   // OpenMP then takes all CPUs of the node, in each rank
  EXPECT_EQ(describe_places(places("a", 8, 64, 64, false)),
            "ranks 0-7: a, 64 threads each: warning: the 512 threads of 8 ranks on 64 CPUs of a are slow; set OMP_NUM_THREADS=8");
  EXPECT_NE(describe_places(places("a", 6, 64, 64, false)).find("set OMP_NUM_THREADS=10"), std::string::npos);
  EXPECT_NE(describe_places(places("a", 4, 1, 2, false)).find("start at most 2 ranks there"), std::string::npos);
  EXPECT_NE(describe_places(places("a", 8, 16, 64, true)).find("bound to 8 CPUs: slow"), std::string::npos);
}

TEST(DescribePlaces, EachHostIsJudgedByItself) {
  std::vector<RankPlace> ranks = places("a", 2, 4, 8, false);
  for (const RankPlace& place : places("b", 2, 8, 8, false)) ranks.push_back(place);
  EXPECT_EQ(describe_places(ranks), "ranks 0-1: a, 4 threads each\nranks 2-3: b, 8 threads each: warning: the 16 threads of 2 ranks on 8 CPUs of b are slow; set OMP_NUM_THREADS=4");
}

}  // namespace
}  // namespace lockstep
