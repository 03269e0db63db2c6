// A device's memory and recordings: what calls promise holds, whatever is still under way.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tensor/device.hpp"

namespace lockstep::test {
namespace {

std::vector<std::uint32_t> read(Device& device, const Allocation& memory) {
  std::vector<std::uint32_t> values(memory.bytes() / sizeof(std::uint32_t));
  device.copy_to_host(values.data(), memory.data(), memory.bytes());
  return values;
}

std::vector<std::uint32_t> numbers(std::size_t count) {
  std::vector<std::uint32_t> values(count);
  std::iota(values.begin(), values.end(), 1u);
  return values;
}

TEST(DeviceMemory, WhatIsCopiedIntoNewMemoryIsNotZeroedAfterwards) {
  Device device;
  const std::vector<std::uint32_t> values = numbers(1000);
  for (int round = 0; round < 5; ++round) {
    const Allocation large = device.allocate(std::size_t{device.is_host() ? 16u : 2048u} << 20);   // clearing it takes a while
    const Allocation small = device.allocate(values.size() * sizeof(std::uint32_t));
    device.copy_to_device(small.data(), values.data(), small.bytes());
    EXPECT_EQ(read(device, small), values);
  }
}

TEST(DeviceRecording, ClearsTheRegionsThatTheCallsClearAndNoOthersInEveryReplay) {
  Device device;
  // Runs of one to fifteen regions of odd sizes, one of them large, with copies before, between and behind them.
  constexpr std::size_t words = 3 << 20;
  const std::vector<std::uint32_t> values = numbers(words);
  const Allocation from = device.allocate(words * 4), to = device.allocate(words * 4);
  device.copy_to_device(from.data(), values.data(), from.bytes());
  std::vector<std::uint32_t> want = values;
  const auto clear = [&](std::size_t first, std::size_t count) { device.zero(static_cast<std::uint32_t*>(to.data()) + first, count * 4); };
  struct Run { std::size_t first, each, count, gap; };
  const Run runs[] = {{1, 1, 1, 0}, {10, 3, 3, 2}, {100, 17, 15, 1}, {1000, 1000, 6, 7}, {10000, 100000, 2, 1}, {500000, 1 << 20, 1, 0}, {2000000, 5, 7, 0}};
  const auto enqueue = [&] {
    device.copy(to.data(), from.data(), to.bytes());
    for (const Run& run : runs) {
      for (std::size_t i = 0; i < run.count; ++i) clear(run.first + i * (run.each + run.gap), run.each);
      device.copy(to.data(), from.data(), 4);               // the first word, which no run clears
    }
  };
  for (const Run& run : runs)
    for (std::size_t i = 0; i < run.count; ++i) std::fill_n(want.begin() + static_cast<std::ptrdiff_t>(run.first + i * (run.each + run.gap)), run.each, 0u);
  const auto replay = device.record(enqueue, true);
  for (int round = 0; round < 3; ++round) {
    device.zero(to.data(), to.bytes());
    replay->run();
    EXPECT_EQ(read(device, to), want);
  }
}

}  // namespace
}  // namespace lockstep::test
