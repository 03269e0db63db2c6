// cudnn_conv: convolutions on NVIDIA's GPUs, by plans of cuDNN, of cuBLAS and lockstep's direct ones.  A plan a direction and batch; what none can do is left
// to lockstep's portable kernels.
// Plans for the problem's own batch are timed once (or taken from ConvChoices); smaller batches take cuDNN's first proposal.
// cuDNN writes 16-bit gradients of 16-bit weights: where they are wanted in f32, they go through scratch.
#include <algorithm>
#include <map>
#include <utility>

#include "backends/chunk_sums.hpp"
#include "backends/conv.hpp"
#include "backends/conv_choices.hpp"
#include "backends/cublas_plan.hpp"
#include "backends/cudnn_plan.hpp"
#include "backends/cudnn_timing.hpp"
#include "backends/direct_plan.hpp"
#include "tensor/pack.hpp"
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
  constexpr int most = 8;
  using Packet = Pack<T, most>;
  if (k % most == 0 && sizeof(Packet) <= 16) {
    const auto wide = static_cast<std::uint32_t>(k / most);
    Kokkos::parallel_for("conv.add_bias", range(device, pixels * wide), KOKKOS_LAMBDA(std::int64_t i) {
      const auto first = static_cast<std::uint32_t>(static_cast<std::uint64_t>(i) % wide) * most;
      Packet packet = reinterpret_cast<const Packet*>(y)[i];
      for (int lane = 0; lane < most; ++lane) packet.of[lane] = T(static_cast<float>(packet.of[lane]) + bias[first + static_cast<std::uint32_t>(lane)]);
      reinterpret_cast<Packet*>(y)[i] = packet;
    });
  } else {
    Kokkos::parallel_for("conv.add_bias", range(device, pixels * k), KOKKOS_LAMBDA(std::int64_t i) { y[i] = T(static_cast<float>(y[i]) + bias[i % k]); });
  }
}

/// to [rows, wide] = from [rows, c], the rest zeros.
template <class T>
void conv_widen(const Device& device, const T* from, T* to, std::int64_t rows, std::int64_t c, std::int64_t wide) {
  Kokkos::parallel_for("conv.widen", range(device, rows * wide), KOKKOS_LAMBDA(std::int64_t i) { to[i] = i % wide < c ? from[i / wide * c + i % wide] : T(0.f); });
}
/// to [rows, c] = the first c of from [rows, wide], or += them.
template <class From, class To>
void conv_accumulate_narrow(const Device& device, const From* from, To* to, std::int64_t rows, std::int64_t c, std::int64_t wide, bool adds) {
  Kokkos::parallel_for("conv.accumulate_narrow", range(device, rows * c), KOKKOS_LAMBDA(std::int64_t i) {
    to[i] = To((adds ? static_cast<float>(to[i]) : 0.f) + static_cast<float>(from[i / c * wide + i % c]));
  });
}

namespace {

std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

const char* text(ConvDirection direction) {
  return direction == ConvDirection::forward ? "forward" : direction == ConvDirection::grad_input ? "grad_input" : "grad_weight";
}

/// What a plan does beside its direction.
enum class Form { plain, adds, sums };

class CudnnConv final : public ConvOp {
 public:
  CudnnConv(Device& device, const ConvProblem& problem, const ConvSetting& setting)
      : problem_(problem), is_deterministic_(setting.config.deterministic),
        plan_workspace_((static_cast<std::size_t>(setting.config.workspace_mib) << 20) * size_of(problem.dtype) / size_of(DType::f16)),
        weight_plan_workspace_(plan_workspace_),
        portable_(kokkos_conv_backend().make(device, own_channels(problem), setting)) {
    if (device.is_plan_only()) {
      foresee(setting.choices);
      return;
    }
    cudnn_ = Cudnn::of_this_process();
    for (const auto& [direction, form] : calls()) choose(device, direction, form, setting.choices);
    plan_workspace_ = weight_plan_workspace_ = 0;
    for (const auto& [key, plan] : plans_)
      if (plan) bound_of(std::get<ConvDirection>(key)) = std::max(bound_of(std::get<ConvDirection>(key)), plan->workspace_bytes());
    is_adding_apart_ = !is_wide() && !find(ConvDirection::grad_input, problem.n, Form::adds);
  }

  const ConvProblem& problem() const override { return problem_; }
  std::size_t workspace_bytes() const override {
    const std::int64_t elements = is_adding_apart_ ? problem_.input().size() : is_wide() ? weights() : 0;
    return std::max(scratch_offset() + static_cast<std::size_t>(elements) * size_of(problem_.dtype), portable_->workspace_bytes());
  }
  std::size_t weight_workspace_bytes() const override {
    return std::max(weight_scratch_offset() + static_cast<std::size_t>(weights()) * size_of(problem_.dtype), portable_->weight_workspace_bytes());
  }
  std::int64_t sum_parts(std::int64_t batch) override {
    if (!cudnn_) return foreseen_parts_;
    if (!find(ConvDirection::forward, problem_.n, Form::sums)) return 0;
    const ConvPlan* plan = find(ConvDirection::forward, batch, Form::sums);
    return plan ? plan->sum_parts() : 0;
  }

  void forward(Device& device, const ConvArguments& a) override {
    const std::int64_t batch = checked_batch(*this, a);
    if (batch == 0) return;
    const ConvPlan* plan = find(ConvDirection::forward, batch, a.sums ? Form::sums : Form::plain);
    if (!plan) return portable_forward(device, a);
    plan->run(device, {.x = a.x.data, .weight = weight_for_plan(device, a), .y = a.y.data, .sums = a.sums.as<float>(), .workspace = a.workspace.data});
    if (a.bias) dispatch(problem_.dtype, [&]<class T>(T) { conv_add_bias(device, a.y.as<T>(), a.bias.as<float>(), a.y.size() / problem_.k, problem_.k); });
  }

  void grad_input(Device& device, const ConvArguments& a) override {
    const std::int64_t batch = checked_batch(*this, a);
    if (batch == 0) return;
    const bool adds = a.mode == GradMode::add, adds_apart = adds && is_adding_apart_;
    if (is_wide()) fail_with(exit_internal, "no gradient of an input that is stored with more channels, in a ", lockstep::text(problem_));
    const ConvPlan* plan = find(ConvDirection::grad_input, batch, adds && !adds_apart ? Form::adds : Form::plain);
    if (!plan) return portable_->grad_input(device, a);
    void* const to = adds_apart ? a.workspace.as<char>() + scratch_offset() : a.grad_x.data;
    plan->run(device, {.x = to, .weight = a.weight.data, .y = a.grad_y.data, .workspace = a.workspace.data});
    if (adds_apart) dispatch(problem_.dtype, [&]<class T>(T) { conv_accumulate(device, static_cast<const T*>(to), a.grad_x.as<T>(), a.grad_x.size(), true); });
  }

  void grad_weight(Device& device, const ConvArguments& a) override {
    const std::int64_t batch = checked_batch(*this, a);
    const ConvPlan* plan = batch > 0 && a.grad_weight ? find(ConvDirection::grad_weight, batch, Form::plain) : nullptr;
    if (a.grad_weight && !plan) {
      if (is_wide()) fail_with(exit_internal, "cuDNN has no gradient of the weights of a ", lockstep::text(problem_), ". Set backends.conv = \"kokkos\".");
      return portable_->grad_weight(device, a);
    }
    const bool adds = a.mode == GradMode::add;
    dispatch(problem_.dtype, [&]<class T>(T) {
      if (plan) {
        const bool is_direct = a.grad_weight.dtype == problem_.dtype && !adds && !is_wide();
        T* const to = is_direct ? a.grad_weight.as<T>() : reinterpret_cast<T*>(a.workspace.as<char>() + weight_scratch_offset());
        plan->run(device, {.x = a.x.data, .weight = to, .y = a.grad_y.data, .workspace = a.workspace.data});
        dispatch(a.grad_weight.dtype, [&]<class To>(To) {
          if (is_wide()) conv_accumulate_narrow(device, to, a.grad_weight.as<To>(), a.grad_weight.size() / problem_.c, problem_.c, problem_.input_channels, adds);
          else if (!is_direct) conv_accumulate(device, to, a.grad_weight.as<To>(), a.grad_weight.size(), adds);
        });
      }
      if (a.grad_bias) conv_grad_bias<T>(device, problem_, a.grad_y, a.grad_bias, a.workspace.as<float>(), adds);
    });
  }

 private:
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

  /// Scratch behind the plans' workspace, in the problem's dtype: a gradient of x where no plan adds to one, or wide weights; the gradient of weights.
  std::size_t scratch_offset() const { return rounded_up(plan_workspace_); }
  std::size_t weight_scratch_offset() const { return rounded_up(std::max(weight_plan_workspace_, bias_workspace_bytes(problem_))); }
  std::int64_t weights() const { return stored(problem_.n).weight().size(); }
  std::size_t& bound_of(ConvDirection direction) { return direction == ConvDirection::grad_weight ? weight_plan_workspace_ : plan_workspace_; }

  PlanRequest request(ConvDirection direction, std::int64_t batch, Form form) const {
    PlanRequest wanted{.problem = stored(batch), .direction = direction, .adds = form == Form::adds, .sums = form == Form::sums,
                       .is_deterministic = is_deterministic_, .most_workspace = direction == ConvDirection::grad_weight ? weight_plan_workspace_ : plan_workspace_};
    wanted.problem.has_bias = false;
    return wanted;
  }

  /// What there may be a plan for.
  std::vector<std::pair<ConvDirection, Form>> calls() const {
    std::vector<std::pair<ConvDirection, Form>> all = {{ConvDirection::forward, Form::plain}};
    if (!problem_.has_bias && problem_.dtype != DType::f32) all.emplace_back(ConvDirection::forward, Form::sums);
    all.emplace_back(ConvDirection::grad_weight, Form::plain);
    if (!is_wide()) all.emplace_back(ConvDirection::grad_input, Form::plain), all.emplace_back(ConvDirection::grad_input, Form::adds);
    return all;
  }

  /// By what choices know it, behind the device.
  std::string named(ConvDirection direction, Form form) const {
    return text_of(text(direction), form == Form::adds ? ", added," : form == Form::sums ? ", with sums," : "", " of a ",
                   lockstep::text(request(direction, problem_.n, form).problem), problem_.allows_tf32 ? ", tf32" : "", is_deterministic_ ? "" : ", any order");
  }

  /// Without a GPU: what plans need that were chosen on one before; where one is not known, all that they may need.
  void foresee(ConvChoices* choices) {
    std::size_t bytes = 0, weight_bytes = 0;
    bool has_adding = false, is_known = choices;
    for (const auto& [direction, form] : calls()) {
      const ConvChoice* chosen = choices ? choices->find_on_any_device(named(direction, form)) : nullptr;
      if (form == Form::sums) foreseen_parts_ = chosen ? chosen->sum_parts : sum_parts_bound(problem_);
      has_adding = has_adding || (form == Form::adds && chosen && !chosen->way.empty());
      std::size_t& most = direction == ConvDirection::grad_weight ? weight_bytes : bytes;
      if (chosen) most = std::max(most, static_cast<std::size_t>(chosen->workspace_bytes));
      is_known = is_known && chosen;
    }
    is_adding_apart_ = !is_wide() && !has_adding;
    if (is_known) plan_workspace_ = std::min(plan_workspace_, bytes), weight_plan_workspace_ = std::min(weight_plan_workspace_, weight_bytes);
  }

  /// The plan of a direction; made when it is first asked for, which is before anything is recorded.  Null: our own kernels.
  const ConvPlan* find(ConvDirection direction, std::int64_t batch, Form form) {
    const auto key = std::tuple(direction, batch, form);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
    const auto whole = plans_.find({direction, problem_.n, form});
    const PlanRequest wanted = request(direction, batch, form);
    std::unique_ptr<ConvPlan> plan = whole != plans_.end() && whole->second ? direct_plan(wanted, whole->second->name()) : nullptr;
    if (!plan) plan = first_plan(wanted);
    return (plans_[key] = std::move(plan)).get();
  }

  /// Sets the plan for the whole batch: the fastest of the candidates, or the one that was chosen before; none where there is none, or where
  /// summing apart is faster.
  void choose(Device& device, ConvDirection direction, Form form, ConvChoices* choices) {
    const PlanRequest wanted = request(direction, problem_.n, form);
    std::unique_ptr<ConvPlan>& plan = plans_[{direction, problem_.n, form}];
    if (!choices) {
      if (form != Form::sums) plan = first_plan(wanted);
      return;
    }
    const std::string what = text_of(device.name(), ", cuDNN ", cudnn_->version(), ": ", named(direction, form));
    const auto keep = [&] {
      choices->add(what, plan ? ConvChoice{plan->name(), static_cast<std::int64_t>(plan->workspace_bytes()), plan->sum_parts()} : ConvChoice{"", 0, 0});
    };
    if (const ConvChoice* chosen = choices->find(what)) {
      const bool is_none = chosen->way.empty();
      if (!is_none) plan = named_plan(wanted, chosen->way);
      if (plan || is_none) return keep();
    }
    if (!choices->may_time()) {
      if (form != Form::sums) plan = first_plan(wanted);
      return keep();
    }
    const double start = stopwatch_seconds();
    std::vector<PlanOffer> offers = direct_offers(wanted);
    for (auto& more : {cublas_offers(wanted), cudnn_offers(cudnn_, wanted)}) offers.insert(offers.end(), more.begin(), more.end());
    PlanTimer timer(device, wanted);
    TimedPlan best = timer.fastest(offers);
    if (form == Form::sums && best.plan) {
      const ConvPlan* apart = find(direction, problem_.n, Form::plain);
      if (!apart || best.milliseconds > timer.milliseconds(*apart) + timer.milliseconds_of_a_pass_over_y()) best.plan = nullptr;
    }
    plan = std::move(best.plan);
    choices->add_timing(stopwatch_seconds() - start);
    keep();
  }
  std::unique_ptr<ConvPlan> named_plan(const PlanRequest& wanted, const std::string& name) const {
    std::unique_ptr<ConvPlan> plan = direct_plan(wanted, name);
    if (!plan) plan = cublas_plan(wanted, name);
    return plan ? std::move(plan) : cudnn_plan(cudnn_, wanted, name);
  }
  std::unique_ptr<ConvPlan> first_plan(const PlanRequest& wanted) const {
    const std::vector<PlanOffer> offers = cudnn_offers(cudnn_, wanted);
    for (const bool is_last_resort : {false, true})
      for (const PlanOffer& offer : offers)
        if (auto plan = offer.is_strict && offer.is_last_resort == is_last_resort ? offer.make() : nullptr) return plan;
    return nullptr;
  }
  static std::vector<PlanOffer> direct_offers(const PlanRequest& wanted) {
    std::vector<PlanOffer> offers;
    for (auto& plan : direct_plans(wanted)) offers.push_back({.make = [name = plan->name(), wanted] { return direct_plan(wanted, name); }});
    return offers;
  }

  ConvProblem problem_;
  bool is_deterministic_;
  std::size_t plan_workspace_, weight_plan_workspace_;   // largest of the plans for the whole batch, of weights' gradients apart; no other may need more
  bool is_adding_apart_ = true;          // no plan adds to grad_x
  std::int64_t foreseen_parts_ = 0;      // without a GPU: of the sums that a plan may write
  std::unique_ptr<ConvOp> portable_;
  std::shared_ptr<Cudnn> cudnn_;
  std::map<std::tuple<ConvDirection, std::int64_t, Form>, std::unique_ptr<ConvPlan>> plans_;   // by direction, batch, form
};

}  // namespace

ConvBackend cudnn_conv_backend() {
  return {.name = "cudnn",
          .rounds_first = true,
          .supports = [](const ConvProblem& problem) { return problem.dtype == DType::f32 || problem.dtype == DType::f16 || problem.dtype == DType::bf16; },
          // cuDNN has an engine of its own for the first layer: 3.7 times as fast on 4 channels as on 3 (7x7, fp16, H200).
          .input_channels = [](const ConvProblem& problem) { return problem.c == 3 && (problem.dtype != DType::f32 || problem.allows_tf32) ? std::int64_t{4} : problem.c; },
          .make = [](Device& device, const ConvProblem& problem, const ConvSetting& setting) -> std::unique_ptr<ConvOp> {
            return std::make_unique<CudnnConv>(device, problem, setting);
          }};
}

}  // namespace lockstep
