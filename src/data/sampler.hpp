// sampler: (seed, epoch, step, rank, world) -> sample ids.  Pure; the same global order for any world size.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/config.hpp"

namespace lockstep {

/// Half-open range of positions in a step's global batch that belongs to a rank: floor or ceil of count / world, in rank order.
struct Part {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
/// The index-th of `parts` nearly equal, ordered parts of [0, count); the longer ones come first.
Part part_of(std::int64_t count, std::int64_t index, std::int64_t parts);

class Sampler {
 public:
  /// images: of the split.  Error when last_batch = drop leaves no step.
  Sampler(const DataConfig& config, std::int64_t images, std::int64_t global_batch, std::uint64_t seed);
  std::int64_t steps_per_epoch() const;
  /// True size of a step's global batch (pad counts the repeated images).
  std::int64_t global_count(std::int64_t step_in_epoch) const;
  /// Ids of positions [begin, end) of step's global batch, in order.  Keeps the orders of the two epochs used last; thread-safe.
  std::vector<std::int64_t> ids(std::int64_t epoch, std::int64_t step_in_epoch, Part part) const;
  /// The whole order of an epoch.
  std::vector<std::int64_t> order(std::int64_t epoch) const;

 private:
  DataConfig config_;
  std::int64_t images_, global_batch_;
  std::uint64_t seed_;
  struct Cache;
  std::shared_ptr<Cache> cache_;
};

}  // namespace lockstep
