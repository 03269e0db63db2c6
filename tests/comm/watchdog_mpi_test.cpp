// A watchdog that has nothing to report: it neither ends the job nor leaves anything behind.
#include "comm/watchdog.hpp"

#include <gtest/gtest.h>
#include <time.h>

#include <chrono>
#include <thread>

#include "comm/communicator.hpp"

namespace lockstep {
namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(Watchdog, ComesAndGoesQuickly) {
  const auto comm = make_communicator();
  for (int i = 0; i < 20; ++i) {
    Progress progress;
    const Watchdog watchdog(progress, 100, 100);
  }
  const auto before = std::chrono::steady_clock::now();
  { Progress progress; const Watchdog watchdog(progress, 100, 100); }
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(2));
}

TEST(Watchdog, ManyMessagesAndALateRankAtTheEndLeaveNothingBehind) {
  const auto comm = make_communicator();
  for (const int late : {0, comm->size() - 1}) {
    Progress progress;
    const Watchdog watchdog(progress, 3, 3);                // a beat every 0.4 s
    for (int i = 0; i < (comm->rank() == late ? 20 : 2); ++i) {
      sleep_ms(100);
      progress.tick();
    }
  }
}

TEST(Watchdog, SlowRanksAndLongWaitsForARankThatMakesProgressAreLeftAlone) {
  const auto comm = make_communicator();
  Progress progress;
  comm->count_calls(&progress.calls);
  progress.phase = Phase::training;
  const Watchdog watchdog(progress, 3, 3);
  progress.phase = Phase::checkpoint;
  if (comm->rank() == 0)                                    // beyond the limit, with signs of life
    for (int i = 0; i < 8; ++i) {
      sleep_ms(600);
      progress.tick();
    }
  comm->barrier();
}

TEST(Watchdog, CostsNoProcessorTime) {
  const auto comm = make_communicator();
  Progress progress;
  const Watchdog watchdog(progress, 100, 100);
  sleep_ms(500);                                            // past the first exchange
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  sleep_ms(2000);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  EXPECT_LT(static_cast<double>(after.tv_sec - before.tv_sec) + 1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec), 0.04);   // 2 %
}

TEST(Watchdog, ZeroMeansNone) {
  Progress progress;
  const Watchdog watchdog(progress, 0, 0);
}

TEST(Watchdog, AnExceptionOnOneRankPassesItWithoutWaitingForTheOthers) {
  const auto comm = make_communicator();
  if (comm->size() == 1) return;
  auto progress = std::make_unique<Progress>();
  EXPECT_THROW(
      {
        const Watchdog watchdog(*progress, 100, 100);
        if (comm->rank() == 0) sleep_ms(200);               // not together
        fail("an error");
      },
      Error);
}

}  // namespace
}  // namespace lockstep
