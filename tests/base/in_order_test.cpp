#include "base/in_order.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace lockstep {
namespace {

TEST(InOrder, ResultsComeAscendingOnceEachAndFewAtATime) {
  for (const int threads : {1, 2, 8}) {
    std::atomic<std::int64_t> made = 0, most = 0;
    std::int64_t taken = 0;
    in_order(3000, threads,
             [&](std::int64_t i) {
               if (i % 97 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
               ++made;
               return 3 * i;
             },
             [&](std::int64_t i, std::int64_t result) {
               EXPECT_EQ(i, taken);
               EXPECT_EQ(result, 3 * i);
               most = std::max<std::int64_t>(most, made - taken);
               ++taken;
             });
    EXPECT_EQ(taken, 3000);
    EXPECT_LE(most, 4 * threads + 1);
  }
  in_order(0, 3, [](std::int64_t) { return 0; }, [](std::int64_t, int) { FAIL(); });
}

TEST(InOrder, AnExceptionOfEitherSideEndsAllThreads) {
  for (const std::int64_t bad : {0, 5, 499}) {
    EXPECT_THROW(in_order(500, 4, [&](std::int64_t i) { return i == bad ? throw std::runtime_error("made") : i; }, [](std::int64_t, std::int64_t) {}), std::runtime_error);
    EXPECT_THROW(in_order(500, 4, [](std::int64_t i) { return i; }, [&](std::int64_t i, std::int64_t) { if (i == bad) throw std::logic_error("taken"); }), std::logic_error);
  }
}

}  // namespace
}  // namespace lockstep
