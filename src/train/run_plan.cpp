#include "train/run_plan.hpp"

#include <algorithm>

#include "data/augment.hpp"
#include "models/models.hpp"

namespace lockstep {
namespace {

std::vector<double> three_of(const std::vector<double>& given, const std::vector<double>& of_shards) {
  const std::vector<double>& chosen = given.empty() ? of_shards : given;
  return chosen.size() == 1 ? std::vector<double>(3, chosen[0]) : chosen;
}

void check_classes(const ModelConfig& model, std::int64_t shard_classes) {
  require(model.classes >= shard_classes, "model.classes = ", model.classes, ", but the shards have ", shard_classes,
          " classes. Raise it, or leave it 0 to take the shards'.");
}

}  // namespace

std::int64_t global_batch_of(const DataConfig& config, std::int64_t ranks) {
  require(config.global_batch == 0 || config.rank_batch == 0, "both data.global_batch and data.rank_batch are set. Keep one of them.");
  require(config.global_batch > 0 || config.rank_batch > 0,
          "neither data.global_batch (images a step over all ranks) nor data.rank_batch (on each rank) is set. Set one of them.");
  const std::int64_t batch = config.global_batch > 0 ? config.global_batch : config.rank_batch * ranks;
  require(batch <= largest_batch, "data.rank_batch = ", config.rank_batch, " on ", ranks, " ranks makes steps of ", batch, " images; at most ", largest_batch, " are allowed. Lower it.");
  require(batch >= ranks, "data.global_batch = ", batch, " leaves some of the ", ranks,
          " ranks without an image in every step. Raise it, or lower --ntasks in the job script.");
  return batch;
}

RunPlan plan_run(const Config& config, const ShardHeader& header, std::int64_t train_images, std::int64_t ranks) {
  RunPlan plan;
  plan.config = config;
  plan.ranks = ranks;
  plan.train_images = train_images;
  plan.shard_classes = static_cast<std::int64_t>(header.classes.size());
  DataConfig& data = plan.config.data;
  data.global_batch = global_batch_of(data, ranks);
  data.rank_batch = 0;
  data.mean = three_of(config.data.mean, header.mean);
  data.std = three_of(config.data.std, header.std);
  if (plan.config.model.classes == 0) plan.config.model.classes = plan.shard_classes;
  check_classes(plan.config.model, plan.shard_classes);

  const std::int64_t group = config.model.sync_bn ? config.model.sync_bn_group : 0;
  require(group == 0 || ranks % group == 0, "model.sync_bn_group = ", group, " does not divide the ", ranks, " ranks. Choose a divisor, or 0 for all ranks.");

  const Sampler sampler(data, train_images, data.global_batch, static_cast<std::uint64_t>(config.run.seed));
  plan.steps_per_epoch = sampler.steps_per_epoch();
  plan.total_steps = plan.steps_per_epoch * config.run.epochs;
  constexpr std::int64_t most_steps_of_a_schedule = 1 << 28;   // each has its rate in memory
  require(plan.total_steps <= most_steps_of_a_schedule, "run.epochs = ", config.run.epochs, " of ", counted(plan.steps_per_epoch, "step"), " each are more than ", most_steps_of_a_schedule,
          " steps. Lower run.epochs, or raise data.global_batch.");
  if (config.run.max_steps > 0) plan.total_steps = std::min(plan.total_steps, config.run.max_steps);
  const std::int64_t profile_from = config.run.profile_from, latest = plan.total_steps - profiled_steps + 1;
  require(profile_from <= std::max<std::int64_t>(latest, 0), "run.profile_from = ", profile_from, ": ", profiled_steps, " steps are profiled, but the run ends after step ",
          plan.total_steps, ". ", latest > 0 ? text_of("Set it to ", latest, " or less.") : "Raise run.epochs or run.max_steps.");
  plan.largest_part = part_of(part_of(std::min(data.global_batch, sampler.global_count(0)), 0, ranks).size(), 0, data.micro_batches).size();
  plan.eval_batch = config.data.eval_batch > 0 ? config.data.eval_batch : plan.largest_part;
  plan.base_rate = scaled_rate(config.optimizer, data.global_batch);

  const Augment train(config.augment, true, 0, header.height, header.width, data.mean, data.std);
  const Augment eval(config.augment, false, 0, header.height, header.width, data.mean, data.std);
  require(train.output_height() == eval.output_height() && train.output_width() == eval.output_width(), "training images come out of [augment] as ",
          train.output_height(), " x ", train.output_width(), " and evaluated ones as ", eval.output_height(), " x ", eval.output_width(),
          ". Set augment.size and augment.eval so that both are equal.");
  plan.images = {std::max(plan.largest_part, plan.eval_batch), train.output_height(), train.output_width(), 3};
  return plan;
}

RunPlan plan_evaluation(Config config, const ShardHeader& header, std::int64_t images, std::int64_t ranks) {
  const std::int64_t batch = config.data.eval_batch > 0 ? config.data.eval_batch : part_of(global_batch_of(config.data, ranks), 0, ranks).size();
  config.data.eval_batch = std::min(batch, std::max<std::int64_t>(1, (images + ranks - 1) / ranks));
  config.data.rank_batch = 0, config.data.global_batch = ranks, config.data.last_batch = "keep", config.data.micro_batches = 1;   // one image a rank is enough of a training batch
  config.data.cache = "none";            // each image is wanted once
  return plan_run(config, header, images, ranks);
}

SchedulePlan schedule_plan(const RunPlan& plan) { return {plan.base_rate, plan.steps_per_epoch, plan.config.run.epochs}; }

}  // namespace lockstep
