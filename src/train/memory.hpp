// memory: what a rank's device will hold, by use, and which batch would fit where all of it does not.
// In: a plan and its data sets.  Out: bytes, and words.  Pure.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "storage/shards.hpp"
#include "tensor/device.hpp"
#include "train/run_plan.hpp"

namespace lockstep {

/// Bytes by use, beside the program itself and what CUDA and NCCL take.
struct MemoryUse {
  std::size_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0, input = 0, cache = 0;
  bool repeats = false;                  // graph.recompute: activations are less for it
  bool is_exact = true;                  // false: workspace is what convolutions may take at most
  std::size_t total() const { return parameters + gradients + optimizer + activations + workspace + input + cache; }
};
/// device.memory_gib; 0 on a CPU: this rank's share of what the host has and its job may take, since Linux gives more and then kills.  ranks_of_host share it.
void limit_memory(Device& device, const DeviceConfig& config, int ranks_of_host);
/// "weights 1.0 MiB, gradients 0.9 MiB, ..."
std::string text(const MemoryUse& use);
/// 1234.5 MiB
std::string mib(std::size_t bytes);

/// Images on their way to a network, in a loader's buffers.
struct ImageFeed {
  std::int64_t images = 0;               // of the largest batch
  std::size_t bytes_per_image = 0;
};
/// What a rank's device holds beside a network.
struct MemoryBeside {
  std::vector<ImageFeed> feeds = {};
  std::size_t cache = 0;
  /// What to do where only so many images at once fit; 0: not even one.
  std::function<std::string(std::int64_t images)> advice = {};
  /// Where the network takes no more images at once.
  std::size_t input_bytes(std::int64_t images) const;
};
/// Of training as planned.  eval: null where nothing is evaluated.  A cache that data.cache = "auto" may take comes beside it: it only takes what is free.
MemoryBeside beside_training(const Device& device, const RunPlan& plan, const Dataset& train, const Dataset* eval);
/// Of evaluation alone, batch by batch.
MemoryBeside beside_evaluation(const Device& device, const RunPlan& plan, const Dataset& eval);

/// Largest n of 0 to most for which fits(n), which holds up to some n and for none above it.
std::int64_t largest_that_fits(std::int64_t most, const std::function<bool(std::int64_t)>& fits);

}  // namespace lockstep
