// run_plan: an input file, resolved against the shards and the number of ranks.
// In: a Config and the data set's header.  Out: the same Config with every default filled in, and the counts that follow from it.  Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "data/sampler.hpp"
#include "optim/schedule.hpp"
#include "storage/shards.hpp"
#include "tensor/tensor.hpp"

namespace lockstep {

inline constexpr std::int64_t profiled_steps = 10;   // from run.profile_from on

struct RunPlan {
  Config config;                         // global_batch, classes, mean, std, name filled in; rank_batch is 0
  std::int64_t train_images = 0, steps_per_epoch = 0, total_steps = 0;
  std::int64_t largest_part = 0;         // images of the largest micro-batch of any rank
  std::int64_t eval_batch = 0;           // images a rank evaluates at once
  double base_rate = 0;                  // learning rate after scaling to the global batch
  Shape images;                          // [largest_part or eval_batch, h, w, 3]: what the network is built for
  std::int64_t shard_classes = 0;
  std::int64_t ranks = 1;
};

/// header: of the training split.  Errors of every kind that can be known before work starts.
RunPlan plan_run(const Config& config, const ShardHeader& header, std::int64_t train_images, std::int64_t ranks);
/// The same where nothing is trained, but so many images are evaluated.
RunPlan plan_evaluation(Config config, const ShardHeader& header, std::int64_t images, std::int64_t ranks);
/// global_batch from data.global_batch or data.rank_batch; Error unless exactly one is set and every rank gets an image.
std::int64_t global_batch_of(const DataConfig& config, std::int64_t ranks);
SchedulePlan schedule_plan(const RunPlan& plan);

}  // namespace lockstep
