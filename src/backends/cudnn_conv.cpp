// cudnn_conv: NVIDIA's convolutions.  A plan a direction and batch; what cuDNN cannot do is left to lockstep's own kernels.
// Plans for the problem's own batch are timed once (or taken from ConvChoices); smaller batches take cuDNN's first proposal.
// cuDNN writes 16-bit gradients of 16-bit weights: they go through scratch into the f32 gradient.
#include <algorithm>
#include <map>
#include <utility>

#include "backends/chunk_sums.hpp"
#include "backends/conv.hpp"
#include "backends/conv_choices.hpp"
#include "backends/cudnn_plan.hpp"
#include "tensor/views.hpp"

namespace lockstep {

/// to = from, or to += from, rounded once.  [any], equal sizes; 16-bit or f32 to f32, or equal types.
template <class From, class To>
void conv_accumulate(const Device& device, const From* from, To* to, std::int64_t count, bool adds) {
  Kokkos::parallel_for("conv.accumulate", range(device, count), KOKKOS_LAMBDA(std::int64_t i) {
    const float value = static_cast<float>(from[i]);
    to[i] = To(adds ? static_cast<float>(to[i]) + value : value);
  });
}

/// y [pixels, k] += bias [k].
template <class T>
void conv_add_bias(const Device& device, T* y, const float* bias, std::int64_t pixels, std::int64_t k) {
  Kokkos::parallel_for("conv.add_bias", range(device, pixels * k), KOKKOS_LAMBDA(std::int64_t i) { y[i] = T(static_cast<float>(y[i]) + bias[i % k]); });
}

/// to [rows, wide] = from [rows, c], the rest zeros.
template <class T>
void conv_widen(const Device& device, const T* from, T* to, std::int64_t rows, std::int64_t c, std::int64_t wide) {
  Kokkos::parallel_for("conv.widen", range(device, rows * wide), KOKKOS_LAMBDA(std::int64_t i) { to[i] = i % wide < c ? from[i / wide * c + i % wide] : T(0.f); });
}
/// to [rows, c] = the first c of from [rows, wide], or += them.
template <class T>
void conv_accumulate_narrow(const Device& device, const T* from, float* to, std::int64_t rows, std::int64_t c, std::int64_t wide, bool adds) {
  Kokkos::parallel_for("conv.accumulate_narrow", range(device, rows * c), KOKKOS_LAMBDA(std::int64_t i) {
    to[i] = (adds ? to[i] : 0.f) + static_cast<float>(from[i / c * wide + i % c]);
  });
}

/// Small numbers of both signs: kernels that are timed on zeros draw less power and run faster than in training.
template <class T>
void conv_fill(const Device& device, T* to, std::int64_t count) {
  Kokkos::parallel_for("conv.fill", range(device, count), KOKKOS_LAMBDA(std::int64_t i) {
    const auto bits = static_cast<std::uint32_t>(i) * 2654435761u;
    to[i] = T(static_cast<float>(static_cast<std::int32_t>(bits >> 20) - 2048) * 0x1p-12f);
  });
}

namespace {

constexpr std::size_t most_candidates = 40;

std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

const char* text(ConvDirection direction) {
  return direction == ConvDirection::forward ? "forward" : direction == ConvDirection::grad_input ? "grad_input" : "grad_weight";
}

class CudnnConv final : public ConvOp {
 public:
  CudnnConv(Device& device, const ConvProblem& problem, const ConvSetting& setting)
      : problem_(problem), plan_workspace_(static_cast<std::size_t>(setting.config.workspace_mib) << 20), portable_(kokkos_conv_backend().make(device, own_channels(problem), setting)) {
    if (device.is_plan_only()) return;   // what a plan may need at most is all that is known
    cudnn_ = Cudnn::of_this_process();
    std::size_t needed = 0;
    for (const ConvDirection direction : {ConvDirection::forward, ConvDirection::grad_weight, ConvDirection::grad_input}) {
      if (is_wide() && direction == ConvDirection::grad_input) continue;
      for (const bool adds : {false, true}) {
        if (adds && direction != ConvDirection::grad_input) continue;
        Plan plan = choose(device, direction, adds, setting.choices);
        if (plan) needed = std::max(needed, plan->workspace_bytes());
        plans_[{direction, problem.n, adds}] = std::move(plan);
      }
    }
    plan_workspace_ = needed;
    is_adding_apart_ = !is_wide() && !find(ConvDirection::grad_input, problem.n, true);
  }

  const ConvProblem& problem() const override { return problem_; }
  std::size_t workspace_bytes() const override { return std::max(scratch_offset() + scratch_bytes(), portable_->workspace_bytes()); }

  void forward(Device& device, const ConvArguments& a) override {
    const std::int64_t batch = checked_batch(*this, a);
    if (batch == 0) return;
    const CudnnPlan* plan = find(ConvDirection::forward, batch, false);
    if (!plan) return portable_forward(device, a);
    plan->run(device, a.x.data, weight_for_plan(device, a), a.y.data, a.workspace.data);
    if (a.bias) dispatch(problem_.dtype, [&]<class T>(T) { conv_add_bias(device, a.y.as<T>(), a.bias.as<float>(), a.y.size() / problem_.k, problem_.k); });
  }

  void grad_input(Device& device, const ConvArguments& a) override {
    const std::int64_t batch = checked_batch(*this, a);
    if (batch == 0) return;
    const bool adds = a.mode == GradMode::add;
    if (is_wide()) fail_with(exit_internal, "no gradient of an input that is stored with more channels, in a ", lockstep::text(problem_));
    const CudnnPlan* plan = find(ConvDirection::grad_input, batch, adds && !is_adding_apart_);
    if (!plan) return portable_->grad_input(device, a);
    if (!adds || !is_adding_apart_) return plan->run(device, a.grad_x.data, a.weight.data, a.grad_y.data, a.workspace.data);
    void* const scratch = a.workspace.as<char>() + scratch_offset();
    plan->run(device, scratch, a.weight.data, a.grad_y.data, a.workspace.data);
    dispatch(problem_.dtype, [&]<class T>(T) { conv_accumulate(device, static_cast<const T*>(scratch), a.grad_x.as<T>(), a.grad_x.size(), true); });
  }

  void grad_weight(Device& device, const ConvArguments& a) override {
    const std::int64_t batch = checked_batch(*this, a);
    const CudnnPlan* plan = batch > 0 && a.grad_weight ? find(ConvDirection::grad_weight, batch, false) : nullptr;
    if (a.grad_weight && !plan) {
      if (is_wide()) fail_with(exit_internal, "cuDNN has no gradient of the weights of a ", lockstep::text(problem_), ". Set backends.conv = \"kokkos\".");
      return portable_->grad_weight(device, a);
    }
    const bool adds = a.mode == GradMode::add;
    dispatch(problem_.dtype, [&]<class T>(T) {
      if (plan) {
        const bool is_direct = problem_.dtype == DType::f32 && !adds && !is_wide();
        T* const to = is_direct ? a.grad_weight.as<T>() : reinterpret_cast<T*>(a.workspace.as<char>() + scratch_offset());
        plan->run(device, a.x.data, to, a.grad_y.data, a.workspace.data);
        if (is_wide()) conv_accumulate_narrow(device, to, a.grad_weight.as<float>(), a.grad_weight.size() / problem_.c, problem_.c, problem_.input_channels, adds);
        else if (!is_direct) conv_accumulate(device, to, a.grad_weight.as<float>(), a.grad_weight.size(), adds);
      }
      if (a.grad_bias) conv_grad_bias<T>(device, problem_, a.grad_y, a.grad_bias, a.workspace.as<float>(), adds);
    });
  }

 private:
  using Plan = std::unique_ptr<CudnnPlan>;

  bool is_wide() const { return problem_.input_channels > 0; }
  static ConvProblem own_channels(ConvProblem problem) {
    problem.input_channels = 0;
    return problem;
  }
  /// The problem as cuDNN sees it, for another batch.
  ConvProblem stored(std::int64_t batch) const {
    ConvProblem problem = problem_;
    problem.n = batch, problem.c = problem_.input().c, problem.input_channels = 0;
    return problem;
  }
  void portable_forward(Device& device, const ConvArguments& a) {
    if (is_wide()) fail_with(exit_internal, "cuDNN has no ", lockstep::text(problem_), ". Set backends.conv = \"kokkos\".");
    portable_->forward(device, a);
  }
  /// The weight, with zeros for the channels that only x has.
  void* weight_for_plan(Device& device, const ConvArguments& a) const {
    if (!is_wide()) return a.weight.data;
    void* const wide = a.workspace.as<char>() + scratch_offset();
    dispatch(problem_.dtype, [&]<class T>(T) {
      conv_widen(device, a.weight.as<const T>(), static_cast<T*>(wide), a.weight.size() / problem_.c, problem_.c, problem_.input_channels);
    });
    return wide;
  }

  /// Scratch behind the plans' workspace: a gradient in the problem's dtype, of the weights, or of x where no plan adds to one; or wide weights.
  std::size_t scratch_offset() const { return rounded_up(std::max(plan_workspace_, bias_workspace_bytes(problem_))); }
  std::size_t scratch_bytes() const {
    const std::int64_t weights = stored(problem_.n).weight().size(), elements = is_adding_apart_ ? std::max(weights, problem_.input().size()) : weights;
    return static_cast<std::size_t>(elements) * size_of(problem_.dtype);
  }

  PlanRequest request(ConvDirection direction, std::int64_t batch, bool adds) const {
    return {stored(batch), direction, adds, plan_workspace_};
  }

  /// The plan of a direction; made when it is first asked for, which is before anything is recorded.  Null: our own kernels.
  const CudnnPlan* find(ConvDirection direction, std::int64_t batch, bool adds) {
    const auto key = std::tuple(direction, batch, adds);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
    auto plans = cudnn_plans(cudnn_, request(direction, batch, adds), 1);
    return (plans_[key] = plans.empty() ? nullptr : std::move(plans[0])).get();
  }

  /// The fastest of cuDNN's proposals for the whole batch, or the one that was chosen before.
  Plan choose(Device& device, ConvDirection direction, bool adds, ConvChoices* choices) {
    const PlanRequest wanted = request(direction, problem_.n, adds);
    const std::string what = text_of(device.name(), ", cuDNN ", cudnn_->version(), ": ", text(direction), adds ? ", added," : "", " of a ", lockstep::text(wanted.problem), problem_.allows_tf32 ? ", tf32" : "");
    if (const std::string* name = choices ? choices->find(what) : nullptr) {
      Plan plan = name->empty() ? nullptr : cudnn_plan(cudnn_, wanted, *name);
      if (plan || name->empty()) return plan;
    }
    auto plans = cudnn_plans(cudnn_, wanted, choices ? most_candidates : 1);
    if (plans.empty()) {
      if (choices) choices->add(what, "");
      return nullptr;
    }
    std::size_t best = 0;
    if (choices) {
      best = fastest(device, plans);
      choices->add(what, plans[best]->name());
    }
    return std::move(plans[best]);
  }

  std::size_t fastest(Device& device, const std::vector<Plan>& plans) const {
    if (plans.size() == 1) return 0;
    std::size_t workspace_bytes = 0;
    for (const Plan& plan : plans) workspace_bytes = std::max(workspace_bytes, plan->workspace_bytes());
    const auto filled = [&](const Shape& shape) {
      Allocation memory = device.allocate(static_cast<std::size_t>(shape.size()) * size_of(problem_.dtype));
      dispatch(problem_.dtype, [&]<class T>(T) { conv_fill(device, static_cast<T*>(memory.data()), shape.size()); });
      return memory;
    };
    const Allocation x = filled(problem_.input()), weight = filled(stored(problem_.n).weight()), y = filled(problem_.output()), workspace = device.allocate(workspace_bytes);
    // cuDNN names its favourites first.  Engines for any problem come last, and may take seconds where the others take a millisecond.
    constexpr double hopeless_ratio = 4, most_seconds = 0.5;
    const double start = stopwatch_seconds();
    std::size_t best = 0;
    double least = 0;
    int hopeless = 0;
    for (std::size_t i = 0; i < plans.size() && hopeless < 2 && (i < 2 || stopwatch_seconds() - start < most_seconds); ++i) {
      const double took = device_milliseconds(device, [&] { plans[i]->run(device, x.data(), weight.data(), y.data(), workspace.data()); }, i == 0 ? 1e9 : 1.2 * least);
      if (i == 0 || took < least) best = i, least = took;
      if (took > hopeless_ratio * least) ++hopeless;
    }
    return best;
  }

  ConvProblem problem_;
  std::size_t plan_workspace_;           // largest of the plans for the whole batch; no other may need more
  bool is_adding_apart_ = true;          // no plan adds to grad_x
  std::unique_ptr<ConvOp> portable_;
  std::shared_ptr<Cudnn> cudnn_;
  std::map<std::tuple<ConvDirection, std::int64_t, bool>, Plan> plans_;   // by direction, batch, whether it adds
};

}  // namespace

ConvBackend cudnn_conv_backend() {
  return {.name = "cudnn",
          .rounds_first = true,
          .supports = [](const ConvProblem& problem) { return problem.dtype == DType::f32 || problem.dtype == DType::f16 || problem.dtype == DType::bf16; },
          // cuDNN has an engine of its own for the first layer: 3.7 times as fast on 4 channels as on 3 (7x7, fp16, H200).
          .input_channels = [](const ConvProblem& problem) { return problem.c == 3 && problem.dtype != DType::f32 ? std::int64_t{4} : problem.c; },
          .make = [](Device& device, const ConvProblem& problem, const ConvSetting& setting) -> std::unique_ptr<ConvOp> {
            return std::make_unique<CudnnConv>(device, problem, setting);
          }};
}

}  // namespace lockstep
