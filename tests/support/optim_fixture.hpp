// optim_fixture: a small set of parameters with an optimizer on it, fed gradients by hand.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "optim/optimizer.hpp"

namespace lockstep::test {

/// Sizes on both sides of the 64-element blocks; "norm" is a batch norm's scale, "bias" a bias, "weight" is large enough for several blocks.
inline std::vector<ParameterSpec> some_parameters() {
  const auto spec = [](const std::string& name, std::int64_t count, bool is_norm_or_bias) {
    ParameterSpec s;
    s.name = name, s.shape = vector_shape(count), s.file_shape = {count}, s.is_norm_or_bias = is_norm_or_bias;
    return s;
  };
  std::vector<ParameterSpec> specs = {spec("fc.weight", 130, false), spec("fc.bias", 10, true), spec("norm.weight", 64, true), spec("conv.weight", 5001, false)};
  for (std::size_t i = 0; i < specs.size(); ++i) specs[i].ordinal = static_cast<int>(specs.size() - 1 - i);
  return specs;
}

/// Parameters, their memory, an optimizer and the step's state, on the device; the test sees host copies.
class Training {
 public:
  struct Options {
    OptimizerConfig config;
    std::vector<float> rates = {0.1f};
    bool is_scaling = false;
    DType compute = DType::f32;
    Gradients gradients = Gradients::f32;
    std::string frozen;                  // name of the slice that is not trained
    std::vector<double> rate_factors;    // of each slice; empty: 1
  };

  Training() : Training(Options()) {}
  explicit Training(const Options& options)
      : parameters_(some_parameters(), {{"bn.running_mean", 5, 0.f}, {"bn.running_var", 70, 1.f}}, options.compute, options.gradients) {
    for (Slice& slice : parameters_.slices()) slice.is_frozen = slice.spec.name == options.frozen;
    for (std::size_t i = 0; i < options.rate_factors.size(); ++i) parameters_.slices()[i].rate_factor = options.rate_factors[i];
    const auto tensor = [&](std::int64_t elements, DType dtype) {
      memory_.push_back(device_.allocate(static_cast<std::size_t>(elements) * size_of(dtype)));
      return Tensor{memory_.back().data(), vector_shape(elements), dtype};
    };
    const std::int64_t elements = parameters_.elements(), buffers = parameters_.buffer_elements();
    ParameterMemory m;
    m.master = tensor(elements, DType::f32);
    m.compute = options.compute == DType::f32 ? m.master : tensor(elements, options.compute);
    m.grad = tensor(parameters_.gradient_elements(), DType::f32);
    m.running = tensor(buffers, DType::f32), m.candidate = tensor(buffers, DType::f32);
    parameters_.bind(m);
    parameters_.initialize(device_, 1);
    step_ = device_.allocate(sizeof(StepState)), losses_ = device_.allocate(sizeof(float));
    put_step(StepState{});
    optimizer_ = std::make_unique<Optimizer>(device_, options.config, parameters_, options.rates, options.is_scaling);
    set_status(status());
  }

  Parameters& parameters() { return parameters_; }
  Optimizer& optimizer() { return *optimizer_; }
  OptimizerStatus status() { return optimizer_->status(device_); }
  void set_status(const OptimizerStatus& status) { optimizer_->set_status(device_, status, step_state()); }

  StepState step() { return get<StepState>(step_.data(), 1)[0]; }
  void put_step(const StepState& step) { device_.copy_to_device(step_.data(), &step, sizeof step), device_.wait(); }

  /// Values of one slice, without the fill behind it.
  std::vector<float> weights(int slice) { return get<float>(parameters_.master(slice).data, count(slice)); }
  std::vector<float> grads(int slice) {
    const Tensor grad = parameters_.grad(slice);
    std::vector<float> values;
    dispatch(grad.dtype, [&]<class T>(T) {
      for (const T value : get<T>(grad.data, count(slice))) values.push_back(static_cast<float>(value));
    });
    return values;
  }
  std::vector<float> all_weights() { return get<float>(parameters_.memory().master.data, parameters_.elements()); }
  void put_weights(int slice, const std::vector<float>& values) { put(parameters_.master(slice).data, values); }
  void put_grad(int slice, const std::vector<float>& values) {
    const Tensor grad = parameters_.grad(slice);
    dispatch(grad.dtype, [&]<class T>(T) {
      std::vector<T> cast;
      for (const float value : values) cast.push_back(T(value));
      device_.copy_to_device(grad.data, cast.data(), cast.size() * sizeof(T)), device_.wait();
    });
  }
  std::vector<float> moment(std::size_t i) { return get<float>(optimizer_->moments()[i].values.data, parameters_.elements()); }
  std::vector<float> running() { return get<float>(parameters_.memory().running.data, parameters_.buffer_elements()); }
  std::vector<float> candidate() { return get<float>(parameters_.memory().candidate.data, parameters_.buffer_elements()); }
  void put_candidate(float value) { put(parameters_.memory().candidate.data, std::vector<float>(static_cast<std::size_t>(parameters_.buffer_elements()), value)); }

  /// One step with the gradients as they are; the host part of the trainer's step.
  void update(float nonfinite_losses = 0) {
    put(losses_.data(), std::vector<float>{nonfinite_losses});
    optimizer_->enqueue_update(device_, step_state(), static_cast<const float*>(losses_.data()));
    StepState next = step();
    next.step += 1;
    put_step(next);
  }

  template <class T>
  std::vector<T> get(const void* data, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    device_.copy_to_host(values.data(), data, values.size() * sizeof(T));
    return values;
  }
  void put(void* data, const std::vector<float>& values) {
    device_.copy_to_device(data, values.data(), values.size() * sizeof(float));
    device_.wait();
  }

 private:
  std::int64_t count(int slice) const { return parameters_.slices()[static_cast<std::size_t>(slice)].count; }
  StepState* step_state() { return static_cast<StepState*>(step_.data()); }

  Device device_;
  Parameters parameters_;
  std::vector<Allocation> memory_;
  Allocation step_, losses_;
  std::unique_ptr<Optimizer> optimizer_;
};

/// `count` normal numbers times `scale`; stream tells sequences apart.
inline std::vector<float> noise(std::int64_t count, std::uint64_t stream, double scale = 1) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(scale * normal(7, Purpose::bench, stream, static_cast<std::uint64_t>(i))));
  return values;
}

}  // namespace lockstep::test
