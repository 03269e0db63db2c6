#include "graph/planner.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.hpp"

namespace lockstep {
namespace {

std::vector<Lifetime> random_lifetimes(std::uint64_t seed, std::size_t count) {
  std::vector<Lifetime> times;
  for (std::size_t i = 0; i < count; ++i) {
    const Bits4 bits = random_bits(seed, Purpose::bench, 0, i);
    const int first = static_cast<int>(bits[0] % 100), length = static_cast<int>(bits[1] % 20);
    times.push_back({bits[2] % 5000, first, first + length});
  }
  return times;
}

bool overlap(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

TEST(Planner, TensorsThatLiveAtOnceNeverShareAByteAndAllFitTheArena) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<Lifetime> times = random_lifetimes(seed, 80);
    const Plan plan = plan_memory(times);
    for (std::size_t i = 0; i < times.size(); ++i) {
      EXPECT_EQ(plan.offsets[i] % 256, 0u);
      EXPECT_LE(plan.offsets[i] + times[i].bytes, plan.arena_bytes);
      for (std::size_t j = 0; j < i; ++j) {
        if (!overlap(times[i], times[j])) continue;
        EXPECT_TRUE(plan.offsets[i] + times[i].bytes <= plan.offsets[j] || plan.offsets[j] + times[j].bytes <= plan.offsets[i] ||
                    times[i].bytes == 0 || times[j].bytes == 0)
            << "seed " << seed << ": tensors " << i << " and " << j;
      }
    }
  }
}

TEST(Planner, AChainOfEqualTensorsNeedsRoomForTwo) {
  std::vector<Lifetime> chain;
  for (int i = 0; i < 30; ++i) chain.push_back({1024, i, i + 1});
  EXPECT_EQ(plan_memory(chain).arena_bytes, 2048u);
}

TEST(Planner, NothingNeedsNothing) {
  EXPECT_EQ(plan_memory({}).arena_bytes, 0u);
  const std::vector<Lifetime> empty(3);
  EXPECT_EQ(plan_memory(empty).arena_bytes, 0u);
}

}  // namespace
}  // namespace lockstep
