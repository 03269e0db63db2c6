// `lockstep check INPUT.toml [run.ranks=N]`: what a job would do, before it is queued.  One process, no GPU.
#include <iostream>
#include <optional>

#include "base/formatted.hpp"
#include "base/host_memory.hpp"
#include "data/image_cache.hpp"
#include "models/models.hpp"
#include "train/commands/commands.hpp"
#include "train/network.hpp"
#include "train/run_folder.hpp"
#include "train/run_plan.hpp"
#include "train/staged_split.hpp"
#include "train/weights.hpp"

namespace lockstep {
namespace {

/// What data.cache = "auto" takes on a GPU that has room.
std::size_t cache_if_free(const RunPlan& plan, const Device& device, const Dataset& train, const Dataset* eval) {
  std::size_t bytes = 0;
  for (const Dataset* split : {&train, eval})
    if (split && !device.is_host() && plan.config.data.cache == "auto" && split->header().height > 0) bytes += ImageCache::bytes_of(*split);
  return bytes;
}

void print_memory(const RunPlan& plan, const Device& device, const MemoryUse& use, std::size_t cache_if_free) {
  const auto line = [](const char* what, std::size_t bytes) { std::cout << formatted("  %-13s %10.1f MiB", what, static_cast<double>(bytes) / (1 << 20)); };
  std::cout << "memory    a rank, beside the program itself:\n";
  line("weights", use.parameters), std::cout << "\n";
  line("gradients", use.gradients), std::cout << "\n";
  line("optimizer", use.optimizer), std::cout << "\n";
  line("activations", use.activations), std::cout << (use.repeats ? "   (normalized ones are computed again: graph.recompute)\n" : "\n");
  line("scratch", use.workspace);
  std::cout << (use.is_exact ? "\n" : text_of("   (at most: backends.workspace_mib = ", plan.config.backends.workspace_mib,
                                              "; exact once a run has chosen its convolutions, in ", plan.config.run.outputs, "/convolutions.txt)\n"));
  line("images", use.input), std::cout << "\n";
  line("image cache", use.cache);
  std::cout << (cache_if_free > 0 ? text_of("   (and ", cache_if_free >> 20, " MiB where a split is at most an eighth of what is free then: data.cache = \"auto\")\n") : "\n");
  line("in all", use.total());
  std::cout << (use.is_exact ? "\n" : " at most\n");
  if (device.limit_bytes() > 0 && use.total() > device.limit_bytes()) std::cout << "          that may be more than device.memory_gib = " << plan.config.device.memory_gib << "\n";
  if (device.is_host()) {
    if (const std::size_t host = host_memory().total; use.total() > host)
      std::cout << "          that is more than this host has: " << mib(host) << "; where the job's have no more, it will be refused\n";
    return;
  }
  std::cout << "  beside these  CUDA's context, libraries and recordings: " << (device.is_plan_only() ? "usually 0.5 to 1 GiB" : mib(device.memory_bytes() - device.free_bytes()) + " now, other processes included")
            << (plan.ranks > 1 ? "; NCCL: usually 0.5 to 1 GiB\n" : "\n");
}

void print_data(const RunPlan& plan, const Dataset& train, const Dataset* eval) {
  const Config& c = plan.config;
  const Part first = part_of(c.data.global_batch, 0, plan.ranks), last = part_of(c.data.global_batch, plan.ranks - 1, plan.ranks);
  std::cout << "data      " << c.data.path << ": " << train.size() << " training images in " << counted(std::ssize(train.files()), "shard") << ", " << plan.shard_classes << " classes\n";
  if (eval) std::cout << "          " << eval->size() << " images of split " << c.data.eval_split << " for evaluation\n";
  std::vector<std::string> splits{c.data.train_split};
  if (eval) splits.push_back(c.data.eval_split);
  if (const std::string plan_of_stage = staging_plan(c.data, splits); !plan_of_stage.empty()) std::cout << plan_of_stage << "\n";
  std::cout << "step      " << c.data.global_batch << " images: " << first.size() << (last.size() == first.size() ? "" : text_of(" or ", last.size())) << " on each of " << counted(plan.ranks, "rank")
            << (c.data.micro_batches > 1 ? text_of(", in ", c.data.micro_batches, " micro-batches") : "") << "; the network sees " << plan.images.h << " x " << plan.images.w
            << " pixels\n"
            << "epoch     " << plan.steps_per_epoch << " steps; " << plan.total_steps << " steps in all\n";
}

void print_rates(const RunPlan& plan) {
  const std::vector<float> rates = rate_table(plan.config.schedule, schedule_plan(plan));
  const std::int64_t steps = std::min<std::int64_t>(plan.total_steps, static_cast<std::int64_t>(rates.size()));
  std::cout << "rate      " << plan.base_rate << " after scaling to the global batch; " << plan.config.schedule.kind << ":";
  for (int i = 0; i <= 4 && steps > 0; ++i) {
    const std::int64_t step = (steps - 1) * i / 4;
    std::cout << "  step " << step << ": " << rates[static_cast<std::size_t>(step)];
  }
  std::cout << "\n";
}

}  // namespace

int run_check(const Invocation& invocation, Communicator& comm, Device& device) {
  Config config = read_config(invocation.arguments.at(0), invocation.overrides);
  require(!config.data.path.empty(), "data.path is not set. Give the folder of shards that lockstep-convert has made.");
  require(comm.size() == 1, "check needs one process. Give the number of ranks as run.ranks=N.");
  const Dataset train(config.data.path, config.data.train_split);
  std::optional<Weights> weights;
  if (!config.model.weights.empty()) {
    weights = read_weights(config.model.weights);
    require_network(weights->file, config.model);
    take_normalization(config, weights->config, config.model.weights);
  }
  const RunPlan plan = plan_run(config, train.header(), train.size(), std::max<std::int64_t>(1, config.run.ranks));
  std::optional<Dataset> eval;
  for (const std::string& split : splits_in(config.data.path))
    if (split == config.data.eval_split) eval.emplace(config.data.path, split);
  const Dataset* evaluated = eval ? &*eval : nullptr;
  print_data(plan, train, evaluated);
  print_rates(plan);

  if (config.device.memory_gib > 0) limit_memory(device, config.device, 1);   // else the job's hosts count, not this one
  const Network network(device, comm, plan.config, plan.images, beside_training(device, plan, train, evaluated));
  std::cout << "network   " << plan.config.model.name << ", " << plan.config.model.classes << " classes, " << network.parameters().elements() << " weights (padded), "
            << network.graph().nodes().size() << " layers, " << network.executor().tasks().buckets.size() << " gradient buckets, precision " << plan.config.precision << "\n";
  if (weights) {
    Parameters::Start start = network.parameters().start_values(static_cast<std::uint64_t>(config.run.seed));
    TrainingState state;
    state.master = std::move(start.master), state.running = std::move(start.running);
    for (const std::string& line : take_weights(*weights, plan.config.model, train.header().classes, network.parameters(), state).table) std::cout << line << "\n";
  }
  print_memory(plan, device, network.memory(), cache_if_free(plan, device, train, evaluated));
  std::cout << "folder    " << run_folder(config.run) << "\n"
            << "ok\n";
  return exit_done;
}

}  // namespace lockstep
