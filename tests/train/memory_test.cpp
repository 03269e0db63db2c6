// memory: what does not fit is refused before any of it is taken, and the batch that is named is the largest that fits.
#include "train/memory.hpp"

#include <gtest/gtest.h>

#include "support/train_network.hpp"

namespace lockstep::test {
namespace {

TEST(Memory, TheLargestThatFitsIsFoundWhereverItLies) {
  for (std::int64_t most = 0; most < 20; ++most)
    for (std::int64_t edge = 0; edge <= most; ++edge) EXPECT_EQ(largest_that_fits(most, [&](std::int64_t n) { return n <= edge; }), edge) << most;
}

/// Images that the refusal of a network for `batch` names; -1: it was not refused.
std::int64_t named_largest(const Config& config, std::int64_t batch, std::size_t limit, const MemoryBeside& others) {
  Device device;
  OneRank comm;
  device.limit_memory(limit);
  std::int64_t named = -1;
  MemoryBeside beside = others;
  beside.advice = [&](std::int64_t images) { return named = images, std::string("."); };
  try {
    Network network(device, comm, config, {batch, 32, 32, 3}, beside);
    network.allocate();
    EXPECT_LE(network.memory().total(), limit);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), exit_bad_input);
    EXPECT_EQ(device.allocated_bytes(), 0u) << "memory was taken before it was refused";
    EXPECT_GE(named, 0) << error.what();
  }
  return named;
}

TEST(Memory, OneImageMoreThanTheRefusalNamesIsRefusedAgain) {
  Config config;
  config.model.name = "resnet20", config.model.classes = 10;
  for (const MemoryBeside& beside : {MemoryBeside{}, MemoryBeside{.feeds = {{.images = 64, .bytes_per_image = 1 << 19}}, .cache = 1 << 20}}) {
    const std::size_t limit = std::size_t{40} << 20;
    const std::int64_t largest = named_largest(config, 64, limit, beside);
    ASSERT_GT(largest, 0);
    EXPECT_EQ(named_largest(config, largest, limit, beside), -1);
    EXPECT_EQ(named_largest(config, largest + 1, limit, beside), largest);
  }
  EXPECT_EQ(named_largest(config, 64, 1 << 20, {}), 0);
}

}  // namespace
}  // namespace lockstep::test
