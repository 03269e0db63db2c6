// optimizer: four kernels a step.  sum of squares (two stages) -> decide (one work item) -> update -> commit.
// The host only queues them: what is decided lies in `Control`, in device memory.
#include "optim/optimizer.hpp"

#include <algorithm>
#include <cstddef>

#include "optim/update_blocks.hpp"
#include "tensor/views.hpp"

namespace lockstep {

namespace optimizer_kernels {

// torch.cuda.amp.GradScaler's numbers.  The ends keep scale and 1 / scale normal floats whatever happens in between.
constexpr float first_scale = 65536, largest_scale = 0x1p60f, smallest_scale = 0x1p-60f;
constexpr std::int64_t growth_interval = 2000;

/// What one step's update needs.  AdamW's factors come from double, as PyTorch computes them on the host.
struct Factors {
  float gradient = 1;                    // unscales and clips
  float rate = 0;
  float decay = 1;                       // AdamW: 1 - rate x weight decay
  float step_size = 0;                   // AdamW: rate / (1 - beta1^t)
  float root_correction = 1;             // AdamW: sqrt(1 - beta2^t)
};
struct Control {
  OptimizerStatus status;
  std::int32_t is_kept = 0;              // this step's update is made
  Factors factors[most_groups];
};

struct Rules {                           // constant in a run
  double clip_norm = 0, weight_decay = 0, beta1 = 0, beta2 = 0;
  std::int64_t rates = 0;
  bool is_scaling = false;               // fp16: a step with non-finite values is skipped
  bool is_scale_fixed = false;
  int groups = 0;
  float rate_factors[most_groups] = {};  // of each group
};

/// A CPU's share: sum of squares of the trained gradients of 64 blocks in a row, so that the sum does not depend on the number of threads.  Double,
/// since squares of scaled gradients overflow f32.
template <class T>
double share_of_squares(const GradientBlocks& grad, const std::uint8_t* blocks, std::int64_t elements, std::int64_t item) {
  double sums[8] = {};
  const std::int64_t begin = item * 64, count = elements / block_size, end = begin + 64 < count ? begin + 64 : count;
  for (std::int64_t block = begin; block < end; ++block) {
    if (!(blocks[block] & is_trained)) continue;
    for (std::int64_t i = 0; i < block_size; i += 4) {
      const Four<float> g = grad.four<T>(block * block_size + i, blocks[block]);
      for (int k = 0; k < 4; ++k) sums[i % 8 + k] += static_cast<double>(g.of[k]) * static_cast<double>(g.of[k]);
    }
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

std::int64_t share_count(std::int64_t elements) { return runs_on_host ? (elements / block_size + 63) / 64 : 0; }
constexpr std::int64_t second_shares = 256;

/// A GPU's shares: a team each, of as many fours as the next.
template <class T>
void sum_squares_by_teams(Device& device, const GradientBlocks& gradients, const std::uint8_t* blocks, std::int64_t elements, double* second) {
  const std::int64_t fours = elements / 4, each = (fours + second_shares - 1) / second_shares;
  const GradientBlocks grad = gradients;
  Kokkos::parallel_for("optimizer.squares", teams(device, second_shares, 512), KOKKOS_LAMBDA(const Teams::member_type& team) {
    const std::int64_t begin = team.league_rank() * each, end = begin + each < fours ? begin + each : fours;
    double squares = 0;
    Kokkos::parallel_reduce(Kokkos::TeamThreadRange(team, begin, begin < end ? end : begin), [&](std::int64_t four, double& sum) {
      const std::uint8_t flags = blocks[four * 4 / block_size];
      if (!(flags & is_trained)) return;
      const Four<float> g = grad.four<T>(4 * four, flags);
      for (int k = 0; k < 4; ++k) sum += static_cast<double>(g.of[k]) * static_cast<double>(g.of[k]);
    }, squares);
    if (team.team_rank() == 0) second[team.league_rank()] = squares;
  });
}

template <class T>
void sum_squares(Device& device, const GradientBlocks& gradients, const std::uint8_t* blocks, std::int64_t elements, double* first, double* second) {
  if constexpr (runs_on_host) {
    const std::int64_t items = share_count(elements);
    const GradientBlocks grad = gradients;
    Kokkos::parallel_for("optimizer.squares", range(device, items), [=](std::int64_t item) { first[item] = share_of_squares<T>(grad, blocks, elements, item); });
    Kokkos::parallel_for("optimizer.sum", range(device, second_shares), [=](std::int64_t item) {
      double sum = 0;
      for (std::int64_t i = item; i < items; i += second_shares) sum += first[i];
      second[item] = sum;
    });
  } else {
    sum_squares_by_teams<T>(device, gradients, blocks, elements, second);
  }
}

/// Whether this step's update is made, and with which factors; moves every counter.
KOKKOS_INLINE_FUNCTION void decide_step(Control& control, StepState& step, double squares, float nonfinite_losses, const float* rates, const Rules& rules) {
  OptimizerStatus& status = control.status;
  control.is_kept = 0;
  if (status.diverged_step >= 0 || step.is_rehearsal) return;
  const double unscale = 1.0 / static_cast<double>(step.loss_scale), norm = Kokkos::sqrt(squares) * unscale;
  status.grad_norm = static_cast<float>(norm);
  if (!Kokkos::isfinite(squares) || !(nonfinite_losses == 0)) {
    if (!rules.is_scaling) {
      status.diverged_step = step.step;
      return;
    }
    status.skipped += 1, status.skipped_in_row += 1, status.good_in_row = 0;
    if (!rules.is_scale_fixed) step.loss_scale = Kokkos::fmax(step.loss_scale / 2, smallest_scale);
    status.loss_scale = step.loss_scale;
    return;
  }
  control.is_kept = 1;
  status.skipped_in_row = 0, status.good_in_row += 1;
  if (rules.is_scaling && !rules.is_scale_fixed && status.good_in_row == growth_interval) {
    step.loss_scale = Kokkos::fmin(step.loss_scale * 2, largest_scale);
    status.good_in_row = 0;
  }
  status.loss_scale = step.loss_scale;

  const double clip = rules.clip_norm > 0 ? Kokkos::fmin(1.0, rules.clip_norm / (norm + 1e-6)) : 1.0;   // torch.nn.utils.clip_grad_norm_
  const std::int64_t last = rules.rates - 1;
  const float base_rate = rates[status.updates < last ? status.updates : last] * step.plateau_factor;
  step.updates = status.updates += 1;
  const double t = static_cast<double>(status.updates);
  const double correction = 1 - Kokkos::pow(rules.beta1, t);
  const auto root_correction = static_cast<float>(Kokkos::sqrt(1 - Kokkos::pow(rules.beta2, t)));
  for (int group = 0; group < rules.groups; ++group) {
    const float rate = base_rate * rules.rate_factors[group];
    Factors& f = control.factors[group];
    f.gradient = static_cast<float>(unscale * clip);
    f.rate = rate;
    f.decay = static_cast<float>(1 - static_cast<double>(rate) * rules.weight_decay);
    f.step_size = static_cast<float>(static_cast<double>(rate) / correction);
    f.root_correction = root_correction;
  }
}

void decide(Device& device, Control* control, StepState* step, const double* shares, const float* nonfinite_losses, const float* rates, const Rules& rules) {
  const Rules fixed = rules;
  Kokkos::parallel_for("optimizer.decide", teams(device, 1, second_shares), KOKKOS_LAMBDA(const Teams::member_type& team) {
    double squares = 0;
    Kokkos::parallel_reduce(Kokkos::TeamThreadRange(team, second_shares), [&](std::int64_t i, double& sum) { sum += shares[i]; }, squares);
    if (team.team_rank() == 0) decide_step(*control, *step, squares, *nonfinite_losses, rates, fixed);
  });
}

/// torch.optim.SGD.  The first step's `buffer = gradient` is momentum x 0 + gradient here.
template <bool has_momentum>
struct Sgd {
  static constexpr int moments = has_momentum ? 1 : 0;
  float momentum, weight_decay;
  bool nesterov;
  KOKKOS_INLINE_FUNCTION float operator()(float weight, float grad, float* moment, std::uint8_t flags, const Factors& f) const {
    float g = grad * f.gradient + (flags & is_decayed ? weight_decay : 0.f) * weight;
    if constexpr (has_momentum) {
      const float b = moment[0] = momentum * moment[0] + g;
      g = nesterov ? g + momentum * b : b;
    }
    return weight - f.rate * g;
  }
};

/// torch.optim.AdamW (Loshchilov and Hutter 2019, alg. 2), no amsgrad.
struct AdamW {
  static constexpr int moments = 2;
  float beta1, rest1, beta2, rest2, epsilon;   // rest = 1 - beta, rounded once
  KOKKOS_INLINE_FUNCTION float operator()(float weight, float grad, float* moment, std::uint8_t flags, const Factors& f) const {
    const float g = grad * f.gradient;
    const float m = moment[0] = beta1 * moment[0] + rest1 * g;
    const float v = moment[1] = beta2 * moment[1] + rest2 * g * g;
    const float kept = weight * (flags & is_decayed ? f.decay : 1.f);
    return kept - f.step_size * (m / (Kokkos::sqrt(v) / f.root_correction + epsilon));
  }
};

/// The arrays of an update, all [elements].
template <class T>
struct UpdateArrays {
  float* weight;
  T* copy;                               // 16-bit compute copy; read by no one where T is float
  GradientBlocks grad;
  float* moments[2];
};

/// weight = rule(weight, grad, moments) for each element of each trained slice, if the step is kept.  A CPU work item is a block, a GPU's four elements.
template <class T, class Rule>
void update(Device& device, const Control* control, const std::uint8_t* blocks, std::int64_t elements, const UpdateArrays<T>& arrays, Rule rule) {
  constexpr std::int64_t count = runs_on_host ? block_size : 4;
  Kokkos::parallel_for("optimizer.update", range(device, elements / count), KOKKOS_LAMBDA(std::int64_t item) {
    const std::uint8_t flags = blocks[item * count / block_size];
    if (!control->is_kept || !(flags & is_trained)) return;
    const Factors factors = control->factors[flags >> group_shift];
    for (std::int64_t i = item * count; i < (item + 1) * count; i += 4) {
      const auto at = [&](float* array) -> Four<float>& { return *reinterpret_cast<Four<float>*>(array + i); };
      const Four<float> grad = arrays.grad.template four<T>(i, flags);
      Four<float> weight = at(arrays.weight), moment[2] = {};
      for (int m = 0; m < Rule::moments; ++m) moment[m] = at(arrays.moments[m]);
      for (int k = 0; k < 4; ++k) {
        float here[2] = {moment[0].of[k], moment[1].of[k]};
        weight.of[k] = rule(weight.of[k], grad.of[k], here, flags, factors);
        moment[0].of[k] = here[0], moment[1].of[k] = here[1];
      }
      at(arrays.weight) = weight;
      for (int m = 0; m < Rule::moments; ++m) at(arrays.moments[m]) = moment[m];
      if constexpr (sizeof(T) == 2) {
        if (!(flags & is_copied)) continue;
        Four<T> copy;
        for (int k = 0; k < 4; ++k) copy.of[k] = T(weight.of[k]);
        *reinterpret_cast<Four<T>*>(arrays.copy + i) = copy;
      }
    }
  });
}

/// running = candidate if the step is kept, else candidate = running.
void commit_statistics(Device& device, const Control* control, float* running, float* candidate, std::int64_t elements) {
  Kokkos::parallel_for("optimizer.commit", range(device, elements), KOKKOS_LAMBDA(std::int64_t i) {
    if (control->is_kept) running[i] = candidate[i];
    else candidate[i] = running[i];
  });
}

}  // namespace optimizer_kernels

using namespace optimizer_kernels;

struct Optimizer::State {
  OptimizerConfig config;
  Parameters& parameters;
  Rules rules;
  Allocation control, rates, blocks, gradient_units, first_shares, last_shares;
  std::vector<std::string> names;        // of the moments
  std::vector<Allocation> moments;

  Control* device_control() const { return static_cast<Control*>(control.data()); }
  float* moment(std::size_t i) const { return static_cast<float*>(moments[i].data()); }
  GradientBlocks gradients() const { return {parameters.memory().grad.as<const char>(), static_cast<const std::int32_t*>(gradient_units.data())}; }
  template <class T>
  void enqueue_rule(Device& device) const;
};

namespace {

std::vector<std::string> moment_names(const OptimizerConfig& config) {
  if (config.kind == "adamw") return {"exp_avg", "exp_avg_sq"};
  if (config.kind == "sgd") return config.momentum > 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
  fail("optimizer.kind = \"", config.kind, "\" is unknown; it must be \"sgd\" or \"adamw\".");
}

}  // namespace

std::size_t moment_bytes(const OptimizerConfig& config, std::int64_t elements) {
  return moment_names(config).size() * static_cast<std::size_t>(elements) * sizeof(float);
}

Optimizer::Optimizer(Device& device, const OptimizerConfig& config, Parameters& parameters, std::span<const float> rates, bool is_scaling)
    : state_(new State{.config = config, .parameters = parameters, .rules = {}, .control = {}, .rates = {}, .blocks = {}, .gradient_units = {},
                       .first_shares = {}, .last_shares = {}, .names = moment_names(config), .moments = {}}) {
  State& s = *state_;
  if (rates.empty() || parameters.elements() % block_size != 0) fail_with(exit_internal, "optimizer: no rates, or slices that are not aligned to ", block_size);
  s.rules = {.clip_norm = config.clip_norm, .weight_decay = config.weight_decay, .beta1 = config.beta1, .beta2 = config.beta2,
             .rates = static_cast<std::int64_t>(rates.size()), .is_scaling = is_scaling, .is_scale_fixed = config.loss_scale > 0};
  const std::vector<double> groups = rate_groups(parameters);
  s.rules.groups = static_cast<int>(groups.size());
  std::ranges::transform(groups, s.rules.rate_factors, [](double factor) { return static_cast<float>(factor); });
  s.control = device.allocate(sizeof(Control));
  s.rates = device.allocate(rates.size_bytes());
  const std::vector<std::uint8_t> flags = block_flags(config, parameters, groups);
  const std::vector<std::int32_t> units = gradient_units(parameters);
  s.blocks = device.allocate(flags.size());
  s.gradient_units = device.allocate(units.size() * sizeof(std::int32_t));
  s.first_shares = device.allocate(static_cast<std::size_t>(share_count(parameters.elements())) * sizeof(double));
  s.last_shares = device.allocate(second_shares * sizeof(double));
  for (std::size_t i = 0; i < s.names.size(); ++i) s.moments.push_back(device.allocate(static_cast<std::size_t>(parameters.elements()) * sizeof(float)));

  Control start;
  if (is_scaling) start.status.loss_scale = config.loss_scale > 0 ? static_cast<float>(config.loss_scale) : first_scale;
  device.copy_to_device(s.control.data(), &start, sizeof start);
  device.copy_to_device(s.rates.data(), rates.data(), rates.size_bytes());
  device.copy_to_device(s.blocks.data(), flags.data(), flags.size());
  device.copy_to_device(s.gradient_units.data(), units.data(), units.size() * sizeof(std::int32_t));
  device.wait();                         // the host copies end here
}
Optimizer::~Optimizer() = default;

std::size_t Optimizer::state_bytes() const {
  const State& s = *state_;
  std::size_t bytes = s.control.bytes() + s.rates.bytes() + s.blocks.bytes() + s.gradient_units.bytes() + s.first_shares.bytes() + s.last_shares.bytes();
  for (const Allocation& moment : s.moments) bytes += moment.bytes();
  return bytes;
}

template <class T>
void Optimizer::State::enqueue_rule(Device& device) const {
  const ParameterMemory& memory = parameters.memory();
  const auto number = [](double value) { return static_cast<float>(value); };
  UpdateArrays<T> arrays{memory.master.as<float>(), memory.compute.as<T>(), gradients(), {}};
  for (std::size_t i = 0; i < moments.size(); ++i) arrays.moments[i] = moment(i);
  const auto run = [&](auto rule) { update(device, device_control(), static_cast<const std::uint8_t*>(blocks.data()), parameters.elements(), arrays, rule); };
  if (config.kind == "adamw")
    run(AdamW{number(config.beta1), number(1 - config.beta1), number(config.beta2), number(1 - config.beta2), number(config.epsilon)});
  else if (config.momentum > 0)
    run(Sgd<true>{number(config.momentum), number(config.weight_decay), config.nesterov});
  else
    run(Sgd<false>{0.f, number(config.weight_decay), false});
}

void Optimizer::enqueue_update(Device& device, StepState* step, const float* nonfinite_losses) {
  const State& s = *state_;
  const ParameterMemory& memory = s.parameters.memory();
  auto* first = static_cast<double*>(s.first_shares.data());
  auto* last = static_cast<double*>(s.last_shares.data());
  dispatch(s.parameters.compute_dtype(), [&]<class T>(T) {
    sum_squares<T>(device, s.gradients(), static_cast<const std::uint8_t*>(s.blocks.data()), s.parameters.elements(), first, last);
  });
  decide(device, s.device_control(), step, last, nonfinite_losses, static_cast<const float*>(s.rates.data()), s.rules);
  dispatch(s.parameters.compute_dtype(), [&]<class T>(T) { s.enqueue_rule<T>(device); });
  commit_statistics(device, s.device_control(), memory.running.as<float>(), memory.candidate.as<float>(), s.parameters.buffer_elements());
}

OptimizerStatus Optimizer::status(Device& device) const {
  OptimizerStatus status;
  device.copy_to_host(&status, &state_->device_control()->status, sizeof status);
  return status;
}

void Optimizer::set_status(Device& device, const OptimizerStatus& status, StepState* step) {
  device.copy_to_device(&state_->device_control()->status, &status, sizeof status);
  device.copy_to_device(&step->updates, &status.updates, sizeof status.updates);
  device.copy_to_device(&step->loss_scale, &status.loss_scale, sizeof status.loss_scale);
  device.wait();
}

std::vector<Optimizer::Moment> Optimizer::moments() const {
  std::vector<Moment> moments;
  for (std::size_t i = 0; i < state_->names.size(); ++i)
    moments.push_back({state_->names[i], {state_->moments[i].data(), vector_shape(state_->parameters.elements()), DType::f32}});
  return moments;
}

}  // namespace lockstep
