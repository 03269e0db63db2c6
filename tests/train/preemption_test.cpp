#include "train/preemption.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

namespace lockstep {
namespace {

TEST(Preemption, TheFlagNamesTheLastSignalAndTheHandlerStays) {
  catch_stop_signals();
  EXPECT_EQ(stop_requested(), 0);
  for (const int signal : {SIGUSR1, SIGTERM, SIGTERM, SIGUSR1}) {
    raise(signal);
    EXPECT_EQ(stop_requested(), signal);
  }
  signal(SIGTERM, SIG_DFL);
  signal(SIGUSR1, SIG_DFL);
}

TEST(Preemption, WhereNoWatchdogWatchesSigtermEndsTheProcessSoonWithTheGivenCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto seconds_to_the_end = [](auto&& before, int signal) {
    catch_stop_signals();
    before();
    raise(signal);
    return static_cast<int>(alarm(0));
  };
  EXPECT_EXIT(exit(seconds_to_the_end([] { end_soon_after_sigterm(143); }, SIGTERM)), testing::ExitedWithCode(5), "");
  EXPECT_EXIT(exit(seconds_to_the_end([] { end_soon_after_sigterm(143); }, SIGUSR1)), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit(seconds_to_the_end([] { end_soon_after_sigterm(143), stay_after_sigterm(); }, SIGTERM)), testing::ExitedWithCode(0), "");
  EXPECT_EXIT((catch_stop_signals(), end_soon_after_sigterm(75), raise(SIGTERM), raise(SIGALRM)), testing::ExitedWithCode(75), "");
  EXPECT_EXIT((catch_stop_signals(), end_soon_after_sigterm(75), raise(SIGTERM), stay_after_sigterm(), raise(SIGALRM), exit(has_been_terminated() ? 3 : 0)),
              testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace lockstep
