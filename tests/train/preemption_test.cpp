#include "train/preemption.hpp"

#include <gtest/gtest.h>
#include <signal.h>

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

}  // namespace
}  // namespace lockstep
