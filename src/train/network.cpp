#include "train/network.hpp"

#include <algorithm>

#include "layers/fusion.hpp"
#include "models/models.hpp"
#include "optim/optimizer.hpp"
#include "train/name_patterns.hpp"
#include "train/plan_cache.hpp"

namespace lockstep {
namespace {

/// The least that there can be: without scratch where only the most is known.
MemoryUse without_guess(MemoryUse use) {
  if (!use.is_exact) use.workspace = 0, use.is_exact = true;
  return use;
}

std::int64_t widest_buffer(const Graph& graph) {
  std::int64_t widest = 0;
  for (const BufferSpec& buffer : graph.buffer_specs()) widest = std::max(widest, buffer.channels);
  return widest;
}

}  // namespace

DType dtype_of(const std::string& precision) {
  if (precision == "fp16") return DType::f16;
  if (precision == "bf16") return DType::bf16;
  return DType::f32;
}

void scale_rates(Parameters& parameters, const OptimizerConfig& config) {
  require_matches("optimizer.rate_parameters", config.rate_parameters, parameters);
  for (Slice& slice : parameters.slices()) {
    const auto match = std::ranges::find_if(config.rate_parameters, [&](const std::string& pattern) { return matches(pattern, slice.spec.name); });
    if (match != config.rate_parameters.end()) slice.rate_factor = config.rate_factors[static_cast<std::size_t>(match - config.rate_parameters.begin())];
  }
}

void freeze(Graph& graph, Parameters& parameters, const FreezeConfig& config) {
  require_matches("freeze.parameters", config.parameters, parameters);
  require_matches("freeze.except", config.except, parameters);
  for (Slice& slice : parameters.slices())
    slice.is_frozen = matches_any(config.parameters, slice.spec.name) && !matches_any(config.except, slice.spec.name);
  require(std::any_of(parameters.slices().begin(), parameters.slices().end(), [](const Slice& s) { return !s.is_frozen; }),
          "freeze.parameters leaves nothing to train. Name the trained parameters in freeze.except.");
  if (config.batch_norm != "running") return;
  for (Node& node : graph.nodes()) {
    if (!node.layer->is_normalization()) continue;
    for (std::size_t which = 0; 2 * which < node.parameters.size(); ++which) {
      const int weight = node.parameters[2 * which], bias = node.parameters[2 * which + 1];
      const bool is_frozen = std::ranges::all_of(parameters.slices(), [&](const Slice& s) { return s.is_frozen || (s.spec.ordinal != weight && s.spec.ordinal != bias); });
      if (is_frozen) node.layer->use_running_statistics(which);
    }
  }
}

Network::Network(Device& device, Communicator& comm, const Config& config, const Shape& images, const MemoryBeside& beside)
    : device_(device), comm_(comm), config_(config), beside_(beside), graph_(images) {
  const Value logits = build_model(graph_, config.model);
  cross_entropy(logits, config.loss.label_smoothing);
  if (config.graph.fuse) fuse(graph_);
  const bool is_summed = comm.size() > 1 || config.run.ranks > 1 || config.data.micro_batches > 1;   // `check` plans for run.ranks
  parameters_ = std::make_unique<Parameters>(finish_order(graph_), std::vector<BufferSpec>(graph_.buffer_specs().begin(), graph_.buffer_specs().end()),
                                             dtype_of(config.precision), is_summed ? Gradients::f32 : Gradients::as_computed);
  freeze(graph_, *parameters_, config.freeze);
  scale_rates(*parameters_, config.optimizer);
  if (config.model.sync_bn && comm.size() > 1 && !device.is_plan_only() && widest_buffer(graph_) > 0)
    exchange_ = make_exchange(device, comm.split(static_cast<int>(config.model.sync_bn_group)), 2 * (2 * widest_buffer(graph_) + 16));
  repeats_ = config.graph.recompute == "always";
  if (knows_room()) {                    // convolutions are timed only where the rest fits
    MemoryUse least = without_guess(planned(repeats_, images.n));
    if (config.graph.recompute == "auto" && least.total() > room()) repeats_ = true, least = without_guess(planned(true, images.n));
    require_room(least);
  }
  make_executor();
}

/// Rank 0 times what its cache does not hold, and all ranks take its choice.  Where no GPU is, earlier choices tell what memory they need.
void Network::make_executor() {
  const Config& config = config_;
  ConvChoices choices;
  const bool is_timed = !device_.is_host() && !device_.is_plan_only();
  const auto make = [&] {
    const ConvSetting convolutions{.config = config.backends, .allows_tf32 = config.precision == "tf32", .choices = device_.is_host() ? nullptr : &choices};
    executor_ = std::make_unique<Executor>(graph_, *parameters_,
                                           Executor::Context{device_, convolutions, comm_, exchange_.get(), dtype_of(config.precision),
                                                             static_cast<std::int64_t>(config.comm.bucket_mib * (1 << 20)), config.graph.overlap, repeats_});
  };
  if (!is_timed) {
    if (!device_.is_host()) choices = read_choices(config.run);
    make();
    is_workspace_known_ = choices.are_complete();
    return;
  }
  if (comm_.rank() == 0) {
    choices = read_choices(config.run);
    make();
    keep_choices(config.run, choices);
  }
  const std::string chosen = comm_.broadcast(choices.text(), 0);
  if (comm_.rank() == 0) return;
  choices.read(chosen);
  make();
}
Network::~Network() = default;

MemoryUse Network::memory() const {
  const auto elements = static_cast<std::size_t>(parameters_->elements()), buffers = static_cast<std::size_t>(parameters_->buffer_elements());
  const MemoryPlan plan = executor_->memory();
  MemoryUse use;
  use.parameters = 4 * elements + 8 * buffers + (parameters_->compute_dtype() == DType::f32 ? 0 : size_of(parameters_->compute_dtype()) * elements);
  use.gradients = 4 * static_cast<std::size_t>(parameters_->gradient_elements());
  use.optimizer = moment_bytes(config_.optimizer, parameters_->elements());
  use.activations = plan.arena;
  use.workspace = plan.workspace;
  use.input = beside_.input_bytes(graph_.shape(0).n);
  use.cache = beside_.cache;
  use.is_exact = is_workspace_known_, use.repeats = repeats_;
  return use;
}

/// Of all ranks the one with the least memory decides, so that all do the same.
std::size_t Network::room() const {
  // A GPU also needs some for what libraries and recordings take later.
  const std::size_t here = device_.limit_bytes() > 0 ? device_.free_bytes() : device_.free_bytes() - device_.free_bytes() / 64;
  return static_cast<std::size_t>(comm_.min(static_cast<std::int64_t>(here)));
}

MemoryUse Network::planned(bool repeats, std::int64_t images) const {
  Device nothing(true);
  Config config = config_;
  config.graph.recompute = repeats ? "always" : "never";
  return Network(nothing, comm_, config, graph_.shape(0).with_batch(images), beside_).memory();
}

void Network::require_room(const MemoryUse& use) {
  if (!knows_room()) return;
  const std::size_t room = this->room();
  if (use.total() <= room) return;
  const Shape& images = graph_.shape(0);
  const bool repeats = config_.graph.recompute != "never";
  const auto needed = [&](std::int64_t n) { return planned(repeats, n); };
  std::int64_t most = largest_that_fits(images.n - 1, [&](std::int64_t n) { return needed(n).total() <= room; });
  if (most == 0) most = largest_that_fits(images.n - 1, [&](std::int64_t n) { return without_guess(needed(n)).total() <= room; });
  fail(config_.device.memory_gib > 0 ? text_of("device.memory_gib = ", config_.device.memory_gib, " leaves ") :
       device_.is_host() ? text_of("this host's memory leaves each of its ", counted(comm_.local_size(), "rank"), " ") : text_of("the GPU (", device_.name(), ") has room for "), mib(room),
       ", but a batch of ", counted(images.n, "image"), " on each rank needs ", mib(use.total()), ": ", text(use), ". ",
       beside_.advice ? beside_.advice(most) : text_of("At most ", most, " at once fit."), repeats ? "" : " Or set graph.recompute to \"auto\".");
}

void Network::allocate() {
  if (config_.graph.recompute == "auto" && !repeats_ && knows_room() && memory().total() > room()) repeats_ = true, make_executor();
  require_room(memory());
  Parameters& p = *parameters_;
  const auto elements = static_cast<std::size_t>(p.elements()), buffers = static_cast<std::size_t>(p.buffer_elements());
  master_ = device_.allocate(elements * 4);
  grad_ = comm_.allocate(device_, static_cast<std::size_t>(p.gradient_elements()) * 4);
  running_ = device_.allocate(buffers * 4);
  candidate_ = device_.allocate(buffers * 4);
  const bool is_copy = p.compute_dtype() != DType::f32;
  if (is_copy) compute_ = device_.allocate(elements * size_of(p.compute_dtype()));
  const auto whole = [](const Allocation& a, std::int64_t count, DType dtype) { return Tensor{a.data(), vector_shape(count), dtype}; };
  p.bind({.master = whole(master_, p.elements(), DType::f32), .compute = whole(is_copy ? compute_ : master_, p.elements(), p.compute_dtype()),
          .grad = whole(grad_, p.gradient_elements(), DType::f32), .running = whole(running_, p.buffer_elements(), DType::f32),
          .candidate = whole(candidate_, p.buffer_elements(), DType::f32)});
  executor_->allocate();
}

bool Network::is_recordable() const { return comm_.is_recordable() && (!exchange_ || exchange_->is_recordable()); }

}  // namespace lockstep
