// `lockstep bench INPUT.toml`: the rate of a training step on synthetic images, or (bench.io=true) of reading shards alone.
#include <algorithm>
#include <iostream>
#include <map>

#include "base/formatted.hpp"
#include "base/random.hpp"
#include "data/loader.hpp"
#include "optim/optimizer.hpp"
#include "train/agreement.hpp"
#include "train/commands/commands.hpp"
#include "train/commands/watch.hpp"
#include "train/network.hpp"
#include "train/run_plan.hpp"
#include "train/staged_split.hpp"
#include "train/step_inputs.hpp"

namespace lockstep {
namespace {

void print_rate(Communicator& comm, std::int64_t images, double seconds, const std::string& what) {
  if (comm.rank() == 0) std::cout << what << "\n" << static_cast<std::int64_t>(static_cast<double>(images) / seconds + 0.5) << " img/s\n" << std::flush;
}

/// Reads batches as training would, and drops them.
int bench_reading(const Config& config, Communicator& comm, Device& device, Progress& progress) {
  require(!config.data.path.empty(), "data.path is not set. Give the folder of shards that lockstep-convert has made.");
  const OpenSplit opened = open_split(comm, config.data, config.data.train_split, [](const std::string& line) { std::cout << line << "\n" << std::flush; }, [&progress] { progress.tick(); });
  const Dataset& dataset = *opened.images;
  require_same_shards(comm, dataset);
  const RunPlan plan = plan_run(config, dataset.header(), dataset.size(), comm.size());
  const Sampler sampler(plan.config.data, dataset.size(), plan.config.data.global_batch, static_cast<std::uint64_t>(config.run.seed));
  const Augment augment(plan.config.augment, true, static_cast<std::uint64_t>(config.run.seed), dataset.header().height, dataset.header().width, plan.config.data.mean, plan.config.data.std);
  // Asked for by name, the cache is timed; by itself it would leave nothing to read.
  const std::unique_ptr<ImageCache> cache = config.data.cache == "auto" ? nullptr : cache_images(device, dataset, plan.config.data, comm.local_size(), [&progress] { progress.tick(); });
  Loader loader(device, dataset, augment, training_work(sampler, 0, comm.rank(), comm.size(), plan.config.data.micro_batches), plan.config.data.readers,
                plan.config.data.slots, plan.largest_part, [&progress] { progress.tick(); }, cache.get());
  std::int64_t images = 0;
  double start = 0;
  progress.phase = Phase::training;
  for (std::int64_t step = 0; step < config.bench.warmup + config.bench.steps; ++step) {
    progress.step = step;
    if (step == config.bench.warmup) comm.barrier(), start = stopwatch_seconds();
    for (std::int64_t part = 0; part < plan.config.data.micro_batches; ++part) {
      const Slot* slot = loader.next();
      if (step >= config.bench.warmup && part == 0) images += slot->global_count;
    }
  }
  comm.barrier();
  print_rate(comm, images, stopwatch_seconds() - start, text_of("reading ", dataset.size(), " images, ", plan.config.data.readers, " readers a rank, ", counted(comm.size(), "rank")));
  return exit_done;
}

/// Normal numbers and labels in range; what they are does not matter, that they are not constant does.
void fill(Device& device, const Tensor& input, const Tensor& labels, std::int64_t classes) {
  std::vector<float> values(static_cast<std::size_t>(input.size()));
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const Uniform4 u = uniform4(0, Purpose::bench, 0, i);
    for (std::size_t j = 0; j < std::min<std::size_t>(4, values.size() - i); ++j) values[i + j] = 3.4f * (u[static_cast<int>(j)] - 0.5f);
  }
  dispatch(input.dtype, [&]<class T>(T) {
    std::vector<T> cast(values.size());
    std::transform(values.begin(), values.end(), cast.begin(), [](float v) { return T(v); });
    device.copy_to_device(input.data, cast.data(), input.bytes());
    device.wait();
  });
  std::vector<std::int32_t> ids(static_cast<std::size_t>(labels.size()));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(random_bits(0, Purpose::bench, 1, i)[0] % static_cast<std::uint64_t>(classes));
  device.copy_to_device(labels.data, ids.data(), labels.bytes());
  device.wait();
}

constexpr std::int64_t profile_steps = 5;

struct Share {
  double milliseconds = 0;
  std::int64_t calls = 0;
};

void print_shares(const std::map<std::string, Share>& shares, double all, std::size_t lines) {
  std::vector<std::pair<std::string, Share>> order(shares.begin(), shares.end());
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return a.second.milliseconds > b.second.milliseconds; });
  for (std::size_t i = 0; i < std::min(lines, order.size()); ++i)
    std::cout << formatted("%9.3f ms %5.1f %% %5lld calls  ", order[i].second.milliseconds, 100 * order[i].second.milliseconds / all, static_cast<long long>(order[i].second.calls))
              << order[i].first << "\n";
}

/// A step's time by kind of layer and direction, and its longest layers: the mean of a few steps.
void print_profile(const std::vector<std::pair<std::string, double>>& pieces, std::int64_t steps) {
  std::map<std::string, Share> kinds, layers;
  double all = 0;
  for (const auto& [label, milliseconds] : pieces) {
    const double share = milliseconds / static_cast<double>(steps);
    const std::size_t end = label.find(' ', label.find(' ') + 1);
    for (Share* of : {&kinds[label.substr(0, end)], &layers[label]}) of->milliseconds += share, of->calls += 1;
    all += share;
  }
  for (auto* shares : {&kinds, &layers})
    for (auto& [name, share] : *shares) share.calls /= steps;
  std::cout << "where " << all << " ms of a step go, layer by layer without a recording\n";
  print_shares(kinds, all, kinds.size());
  std::cout << "the longest\n";
  print_shares(layers, all, 24);
}

}  // namespace

int run_bench(const Invocation& invocation, Communicator& comm, Device& device) {
  Config config = read_config(invocation.arguments.at(0), invocation.overrides);
  Watch watch(comm, config.run);
  require_same_config(comm, config);
  if (config.bench.io) return bench_reading(config, comm, device, watch.progress);
  config.data.global_batch = global_batch_of(config.data, comm.size());
  const std::int64_t batch = part_of(config.data.global_batch, comm.rank(), comm.size()).size();
  const std::int64_t size = config.augment.size > 0 ? config.augment.size : config.bench.image_size;
  if (config.model.classes == 0) config.model.classes = config.bench.classes;

  limit_memory(device, config.device, comm.local_size());
  Network network(device, comm, config, {batch, size, size, 3}, {.advice = [&](std::int64_t images) {
    return images == 0 ? std::string("Not even one fits.") : text_of("At most ", images, " at once fit: lower data.global_batch to ", images * comm.size(), ".");
  }});
  network.allocate();
  const std::vector<float> rates(1, static_cast<float>(1e-6 * config.optimizer.learning_rate));  // small: random labels must not diverge
  Optimizer optimizer(device, config.optimizer, network.parameters(), rates, config.precision == "fp16");
  network.parameters().initialize(device, static_cast<std::uint64_t>(config.run.seed));
  Executor& executor = network.executor();
  optimizer.start(device, executor.step_state());
  StepInputsFeed inputs(device);
  Flight flight(device);
  // Where the first layers are frozen their input's place holds other activations by the end of a step: training's augment writes it each time anew.
  const bool is_kept = std::ranges::any_of(network.parameters().slices(), &Slice::is_frozen);
  const Allocation kept = device.allocate(is_kept ? executor.input().bytes() : 0);
  const auto enqueue = [&](Timeline* timeline) {
    if (is_kept) device.copy(executor.input().data, kept.data(), executor.input().bytes());
    if (timeline && is_kept) timeline->mark("input copy ");
    executor.enqueue_training(batch, true, true, timeline);
    optimizer.enqueue_update(device, executor.step_state(), network.parameters().nonfinite_losses());
    if (timeline) timeline->mark("optimizer update ");
  };
  const std::unique_ptr<Replay> replay = device.record([&] { enqueue(nullptr); }, config.device.record && network.is_recordable());
  double start = 0;
  for (std::int64_t step = 0; step < config.bench.warmup + config.bench.steps; ++step) {
    if (step == config.bench.warmup) device.wait(), comm.barrier(), start = stopwatch_seconds();
    if (step == 0) fill(device, is_kept ? Tensor{kept.data(), executor.input().shape, executor.input().dtype} : executor.input(), executor.labels(), config.model.classes);
    inputs.publish({.step = step, .inverse_global_count = 1.0f / static_cast<float>(config.data.global_batch), .local_count = static_cast<std::int32_t>(batch)}, executor.step_state());
    replay->run();
    flight.limit(2);
    watch.progress.phase = Phase::training, watch.progress.step = step + 1;
  }
  device.wait();
  comm.barrier();
  const double seconds = stopwatch_seconds() - start;
  if (config.bench.profile) {
    Timeline timeline(device);
    for (std::int64_t step = 0; step < profile_steps; ++step) enqueue(&timeline);
    const auto pieces = timeline.milliseconds();
    if (comm.rank() == 0) print_profile(pieces, profile_steps);
  }
  const OptimizerStatus status = optimizer.status(device);
  const std::int64_t updates = config.bench.warmup + config.bench.steps + (config.bench.profile ? profile_steps : 0);
  if (comm.rank() == 0 && status.updates < updates)
    std::cout << "only " << status.updates << " of " << updates << " updates were made: " << status.skipped
              << " were skipped until the loss scale was " << status.loss_scale << (status.diverged_step >= 0 ? "; the run has diverged" : "") << "\n";
  print_rate(comm, config.bench.steps * config.data.global_batch, seconds,
             text_of(config.model.name, ", ", size, " x ", size, ", batch ", config.data.global_batch, ", ", config.precision, ", ", counted(comm.size(), "rank"), ", ", device.name(), ": ",
                     1e3 * seconds / static_cast<double>(config.bench.steps), " ms a step, ", device.allocated_bytes() >> 20, " MiB", network.memory().repeats ? " (graph.recompute)" : ""));
  return exit_done;
}

}  // namespace lockstep
