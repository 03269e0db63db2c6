// `lockstep check INPUT.toml [run.ranks=N]`: what a job would do, before it is queued.  One process, no GPU.
#include <cstdio>
#include <iostream>
#include <limits>
#include <optional>

#include "data/image_cache.hpp"
#include "models/models.hpp"
#include "train/commands/commands.hpp"
#include "train/network.hpp"
#include "train/run_folder.hpp"
#include "train/run_plan.hpp"

namespace lockstep {
namespace {

std::string mib(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%10.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

/// What data.cache takes.  `undecided`: what "auto" takes on a GPU of which this machine cannot say how much is free.
std::size_t cache_bytes(const DataConfig& config, const Dataset& split, const Device& device, std::size_t& undecided) {
  const std::size_t bytes = ImageCache::bytes_of(split), enough = std::numeric_limits<std::size_t>::max();
  const CacheRoom room{.is_host = device.is_host(), .device_bytes = device.is_plan_only() ? enough : device.free_bytes(), .host_bytes = enough};
  if (choose_cache(config.cache, split.header().split, bytes, split.header().height > 0, room) == CachePlace::none) return 0;
  if (config.cache != "auto" || !device.is_plan_only()) return bytes;
  undecided += bytes;
  return 0;
}

void print_data(const RunPlan& plan, const Dataset& train, const Dataset* eval) {
  const Config& c = plan.config;
  const Part first = part_of(c.data.global_batch, 0, plan.ranks), last = part_of(c.data.global_batch, plan.ranks - 1, plan.ranks);
  std::cout << "data      " << c.data.path << ": " << train.size() << " training images in " << counted(std::ssize(train.files()), "shard") << ", " << plan.shard_classes << " classes\n";
  if (eval) std::cout << "          " << eval->size() << " images of split " << c.data.eval_split << " for evaluation\n";
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
  const Config config = read_config(invocation.arguments.at(0), invocation.overrides);
  require(!config.data.path.empty(), "data.path is not set. Give the folder of shards that lockstep-convert has made.");
  require(comm.size() == 1, "check needs one process. Give the number of ranks as run.ranks=N.");
  const Dataset train(config.data.path, config.data.train_split);
  const RunPlan plan = plan_run(config, train.header(), train.size(), std::max<std::int64_t>(1, config.run.ranks));
  std::optional<Dataset> eval;
  for (const std::string& split : splits_in(config.data.path))
    if (split == config.data.eval_split) eval.emplace(config.data.path, split);
  const Dataset* evaluated = eval ? &*eval : nullptr;
  print_data(plan, train, evaluated);
  print_rates(plan);

  Network network(device, comm, plan.config, plan.images);
  MemoryUse use = network.memory(plan.config.optimizer);
  use.input = static_cast<std::size_t>(plan.config.data.slots + 1) * static_cast<std::size_t>(plan.largest_part) * static_cast<std::size_t>(train.max_image_bytes());
  std::size_t undecided = 0;
  for (const Dataset* split : {&train, evaluated})
    if (split) use.cache += cache_bytes(plan.config.data, *split, device, undecided);
  std::cout << "network   " << plan.config.model.name << ", " << plan.config.model.classes << " classes, " << network.parameters().elements() << " weights (padded), "
            << network.graph().nodes().size() << " layers, " << network.executor().tasks().buckets.size() << " gradient buckets, precision " << plan.config.precision << "\n"
            << "memory    a rank, beside the program itself:\n"
            << "  weights       " << mib(use.parameters) << "\n  gradients     " << mib(use.gradients) << "\n  optimizer     " << mib(use.optimizer)
            << "\n  activations   " << mib(use.activations) << "\n  scratch       " << mib(use.workspace) << "\n  images        " << mib(use.input)
            << "\n  image cache   " << mib(use.cache)
            << (undecided > 0 ? text_of("   (and ", undecided >> 20, " MiB where that is at most an eighth of what the GPU has free: data.cache = \"auto\")") : "")
            << "\n  in all        " << mib(use.total()) << "\n"
            << "folder    " << run_folder(config.run) << "\n"
            << "ok\n";
  return exit_done;
}

}  // namespace lockstep
