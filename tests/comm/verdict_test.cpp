// Who is to blame, from tables written by hand.
#include "comm/verdict.hpp"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr Limits limits = {.stall_seconds = 100, .start_seconds = 1000, .news_seconds = 3};

Sight sight(std::int64_t calls, double idle, double silent = 1) {
  return {{.number = 5, .calls = calls, .step = 10, .idle_seconds = idle, .phase = Phase::training, .is_leaving = 0}, silent};
}

TEST(Verdict, NobodyIsBlamedWhileTheRankBehindMakesProgress) {
  const std::vector<Sight> writing = {sight(4, 3, 0), sight(5, 500), sight(5, 500)};   // rank 0 writes a checkpoint, the others wait
  for (int me = 0; me < 3; ++me) EXPECT_FALSE(judge(me, writing, limits));
}

TEST(Verdict, TheRankThatDidNotComeToTheCollectiveCallIsBlamedNotThoseThatWait) {
  const std::vector<Sight> ranks = {sight(5, 130, 0), sight(5, 120), sight(4, 100), sight(5, 140)};
  EXPECT_EQ(judge(0, ranks, limits), (Verdict{{2}, false, false}));
  const std::vector<std::string> hosts = {"n0", "n1", "n2", "n3"};
  EXPECT_NE(describe(*judge(0, ranks, limits), ranks, hosts).find("rank 2 on n2 (step 10, training, 101 s without progress)"), std::string::npos);
}

TEST(Verdict, WithoutCallsTheLowestStepIsBehind) {
  std::vector<Sight> ranks = {sight(0, 130, 0), sight(0, 130), sight(0, 130)};
  ranks[1].beat.step = 9;
  EXPECT_EQ(judge(2, ranks, limits), (Verdict{{1}, false, false}));
}

TEST(Verdict, InATieTheFirstToHaltIsNamed) {
  const std::vector<Sight> ranks = {sight(5, 104, 0), sight(5, 109), sight(5, 103)};
  EXPECT_EQ(judge(0, ranks, limits), (Verdict{{1}, false, true}));
}

TEST(Verdict, ARankThatSendsNothingMoreIsSilentNotBehind) {
  const std::vector<Sight> ranks = {sight(5, 101, 0), sight(4, 0, 101), sight(5, 101)};
  EXPECT_EQ(judge(0, ranks, limits), (Verdict{{1}, true, false}));
  const std::vector<std::string> hosts = {"n0", "n1", "n2"};
  EXPECT_NE(describe(*judge(0, ranks, limits), ranks, hosts).find("no message comes any more from rank 1 on n1"), std::string::npos);
}

TEST(Verdict, AllRanksThatTheJobWaitsForAreNamedNotTheFirstToFallSilentAlone) {
  EXPECT_EQ(judge(0, std::vector<Sight>{sight(5, 101, 0), sight(4, 0, 101), sight(5, 101), sight(4, 0, 60)}, limits), (Verdict{{1, 3}, true, false}));
}

TEST(Verdict, AJobThatGoesOnIsNotEndedForSilence) {
  const std::vector<Sight> ranks = {sight(5, 1, 0), sight(4, 0, 300)};
  EXPECT_FALSE(judge(0, ranks, limits));
}

TEST(Verdict, OnceSigtermHasComeASilentRankIsWaitedForOnlyAsLongAsNewsMayTake) {
  Limits ending = limits;
  ending.is_ending = true;
  const auto with_silence = [](double seconds) { return std::vector<Sight>{sight(5, 6, 0), sight(4, 0, seconds)}; };
  EXPECT_EQ(judge(0, with_silence(6), ending), (Verdict{{1}, true, false}));
  EXPECT_FALSE(judge(0, with_silence(5), ending));
  EXPECT_FALSE(judge(0, with_silence(6), limits));
  EXPECT_FALSE(judge(0, std::vector<Sight>{sight(5, 1, 0), sight(4, 0, 300)}, ending));   // this rank goes on: it will save
}

TEST(Verdict, OldNewsOfALongWaitIsNoSignOfAHalt) {
  EXPECT_FALSE(judge(0, std::vector<Sight>{sight(6, 2, 0), sight(5, 500)}, limits));   // rank 0 has just let the others go
  EXPECT_TRUE(judge(0, std::vector<Sight>{sight(6, 8, 0), sight(5, 500)}, limits));    // by now rank 1 would have shown
}

TEST(Verdict, StartHasItsOwnLimit) {
  std::vector<Sight> ranks = {sight(5, 500, 0), sight(4, 500)};
  ranks[1].beat.phase = Phase::warm_up;
  EXPECT_FALSE(judge(0, ranks, limits));
  ranks[1].beat.idle_seconds = 1000;
  EXPECT_TRUE(judge(0, ranks, limits));
  EXPECT_FALSE(judge(0, ranks, {.stall_seconds = 100, .start_seconds = 0, .news_seconds = 3}));
}

TEST(Verdict, ARankOnItsWayOutIsNotBehind) {
  std::vector<Sight> ranks = {sight(3, 500, 0), sight(4, 20)};
  ranks[0].beat.is_leaving = 1;
  EXPECT_FALSE(judge(0, ranks, limits));
  ranks[1].beat.idle_seconds = 100;
  EXPECT_EQ(judge(0, ranks, limits), (Verdict{{1}, false, false}));
}

TEST(Verdict, TheLowestRankThatIsNotBlamedReportsFirst) {
  const Verdict verdict{{0, 2}, false, false};
  EXPECT_EQ(turn_to_report(verdict, 1, 4), 0);
  EXPECT_EQ(turn_to_report(verdict, 3, 4), 1);
  EXPECT_EQ(turn_to_report(verdict, 0, 4), 2);
  EXPECT_EQ(turn_to_report(verdict, 2, 4), 3);
}

}  // namespace
}  // namespace lockstep
