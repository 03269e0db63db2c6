#include "layers/batch_norm.hpp"

#include "layers/batch_norm_pool.hpp"
#include "layers/batch_norm_sums.hpp"

namespace lockstep {

void batch_norm_finish_exchanged(const Device& device, const ForwardEnd& end) {
  Kokkos::parallel_for("batch_norm.finish", range(device, end.c), KOKKOS_LAMBDA(std::int64_t i) { end.finish_exchanged(i); });
}

void batch_norm_average(const Device& device, const BackwardEnd& end) {
  Kokkos::parallel_for("batch_norm.average", range(device, end.c), KOKKOS_LAMBDA(std::int64_t i) { end.average(i); });
}

/// The running statistics as they are.
void batch_norm_running(const Device& device, std::int64_t c, double epsilon, const float* running_mean, const float* running_var, float* mean, float* inv_std) {
  Kokkos::parallel_for("batch_norm.running", range(device, c), KOKKOS_LAMBDA(std::int64_t i) {
    mean[i] = running_mean[i];
    inv_std[i] = static_cast<float>(1 / Kokkos::sqrt(static_cast<double>(running_var[i]) + epsilon));
  });
}

namespace {

ForwardEnd forward_end(const Forward& f, std::size_t which, const BatchNormOptions& options, const BatchNormState& state, float* totals) {
  const Shape& x = f.in[which].shape;
  return {.is_local = !f.exchange, .c = x.c, .rows = x.n * x.h * x.w, .momentum = options.momentum, .epsilon = options.epsilon, .totals = totals,
          .running_mean = f.buffers[2 * which].as<float>(), .running_var = f.buffers[2 * which + 1].as<float>(), .mean = state.mean, .inv_std = state.inv_std,
          .inverse_count = state.inverse_count};
}

}  // namespace

void batch_norm_statistics(const Forward& f, std::size_t which, const BatchNormOptions& options, bool uses_running, const BatchNormState& state, float* totals,
                           float* partial) {
  const ForwardEnd end = forward_end(f, which, options, state, totals);
  const Tensor sums = which < f.in_sums.size() ? f.in_sums[which] : Tensor{};
  if (f.mode != Mode::training || uses_running) batch_norm_running(f.device, end.c, options.epsilon, end.running_mean, end.running_var, state.mean, state.inv_std);
  else if (sums) batch_norm_take_sums(f.device, sums, {end, end.running_mean});
  else batch_norm_sums(f.device, f.in[which], end.running_mean, partial, end);
}

void batch_norm_finish(const Forward& f, std::size_t which, const BatchNormOptions& options, const BatchNormState& state, float* totals) {
  batch_norm_finish_exchanged(f.device, forward_end(f, which, options, state, totals));
}

BatchNormVectors batch_norm_vectors(const BatchNormState& state, std::span<const Tensor> weights, std::size_t which) {
  return {state.mean, state.inv_std, weights[2 * which].as<float>(), weights[2 * which + 1].as<float>()};
}

BackwardEnd batch_norm_backward_end(const Backward& b, std::size_t which, const BatchNormState& state, float* totals) {
  return {.is_local = !b.exchange, .c = b.in[which].shape.c, .inv_std = state.inv_std, .inverse_count = state.inverse_count,
          .grad_weight = b.grad_weights[2 * which].as<float>(), .grad_bias = b.grad_weights[2 * which + 1].as<float>(),
          .adds = b.weight_mode == GradMode::add, .totals = totals};
}

namespace {

/// How saved and workspace are divided.
struct Layout {
  std::int64_t c;
  DType dtype;
  Shape pooled;                          // without a pool: empty
  std::size_t state() const { return BatchNormState::bytes(c); }
  std::size_t argmax() const { return (place_bytes(pooled, dtype) + 255) / 256 * 256; }
  std::int64_t totals() const { return BatchNormState::room(2 * c + count_parts); }
  std::uint8_t* bits(Tensor saved) const { return saved.as<std::uint8_t>() + state(); }
  PoolSaved pool(Tensor saved) const { return saved ? PoolSaved{bits(saved), bits(saved) + argmax()} : PoolSaved{}; }
  float* partial(Tensor workspace) const { return workspace.as<float>() + totals() + static_cast<std::int64_t>(state() / sizeof(float)); }
};

template <class T, bool has_residual, bool has_relu>
void apply(const Forward& f, const BatchNormVectors& v, std::uint8_t* bits) {
  const T* residual = has_residual ? f.in[1].as<T>() : nullptr;
  for_each_block("batch_norm.apply", f.device, cut_rows(f.out.shape, few_rows),
                 BatchNormApply<T, has_residual, has_relu>{f.in[0].as<T>(), residual, f.out.as<T>(), bits, v, f.out.shape.c}, Walk::backwards);
}

template <class T, Mask mask>
void grad_apply(const Backward& b, const BatchNormVectors& v, Tensor grad_out, const void* mask_source, const float* means) {
  const Shape& x = b.in[0].shape;
  for_each_block("batch_norm.grad_apply", b.device, cut_rows(x, few_rows),
                 BatchNormGradApply<T, mask>{b.in[0].as<T>(), grad_out.as<T>(), mask_source, b.grad_in[0].tensor.as<T>(),
                                             b.grad_in[0].mode == GradMode::add, v, means, x.c}, Walk::backwards);
}

}  // namespace

std::string BatchNorm::kind() const {
  return std::string("batch_norm") + (has_residual_ ? "+add" : "") + (has_relu_ ? "+relu" : "") + (has_pool_ ? "+max_pool" : "");
}

Shape BatchNorm::output(Shapes in) const {
  require(in[0].c == channels_, "batch_norm: an input of ", in[0].c, " channels does not fit ", channels_, " scales");
  if (has_residual_) require(in[1] == in[0], "batch_norm + add: ", text(in[0]), " and ", text(in[1]), " differ");
  return has_pool_ ? stem_window.output(in[0]) : in[0];
}

std::vector<ParameterSpec> BatchNorm::parameters() const {
  const auto vector = [&](const char* name, double start) {
    return ParameterSpec{.name = name, .shape = vector_shape(channels_), .file_shape = {channels_}, .layout = {},
                         .init = {.kind = Init::constant, .value = start}, .is_norm_or_bias = true};
  };
  return {vector("weight", options_.scale_start), vector("bias", 0)};
}

std::vector<BufferSpec> BatchNorm::buffers() const {
  return {{.name = "running_mean", .channels = channels_, .start = 0}, {.name = "running_var", .channels = channels_, .start = 1}};
}

Needs BatchNorm::needs(DType dtype, Shapes in) const {
  const Layout layout{channels_, dtype, has_pool_ ? stem_window.output(in[0]) : Shape{0, 0, 0, 0}};
  const bool keeps_mask = has_relu_ && has_residual_, has_bits = keeps_mask && has_mask_bits(dtype, channels_);
  std::size_t saved = layout.state();
  if (has_bits) saved += mask_bits_bytes(in[0], dtype);
  if (has_pool_) saved += layout.argmax() + static_cast<std::size_t>(layout.pooled.size()) * size_of(dtype);
  return {.keeps_input = true, .keeps_output = keeps_mask && !has_bits, .saved_bytes = saved,
          .workspace_bytes = static_cast<std::size_t>(layout.totals() + batch_norm_partials(in[0], dtype, 2)) * sizeof(float) + layout.state(), .grad_over_input = !has_pool_,
          .grad_over_grad = !has_pool_};
}

void BatchNorm::forward(const Forward& f) {
  const bool is_training = f.mode != Mode::evaluation;
  const Layout layout{channels_, f.in[0].dtype, has_pool_ ? f.out.shape : Shape{0, 0, 0, 0}};
  float* const totals = f.workspace.as<float>();
  const BatchNormState state(channels_, is_training ? f.saved.data : totals + layout.totals());
  if (f.mode != Mode::again) batch_norm_statistics(f, 0, options_, uses_running_, state, totals, layout.partial(f.workspace));
  if (f.exchange && f.mode == Mode::training && !uses_running_) {
    f.exchange->sum(f.device, {totals, vector_shape(2 * channels_ + count_parts), DType::f32});
    batch_norm_finish(f, 0, options_, state, totals);
  }
  const BatchNormVectors v = batch_norm_vectors(state, f.weights, 0);
  if (has_pool_) return batch_norm_pool_apply(f.device, f.in[0], f.out, v, layout.pool(is_training ? f.saved : Tensor{}));
  std::uint8_t* const bits = is_training && has_residual_ && has_relu_ && has_mask_bits(f.in[0].dtype, channels_) ? layout.bits(f.saved) : nullptr;
  dispatch(f.in[0].dtype, [&]<class T>(T) {
    if (has_residual_) has_relu_ ? apply<T, true, true>(f, v, bits) : apply<T, true, false>(f, v, bits);
    else has_relu_ ? apply<T, false, true>(f, v, bits) : apply<T, false, false>(f, v, bits);
  });
}

void BatchNorm::backward_input(const Backward& b) {
  const Layout layout{channels_, b.in[0].dtype, has_pool_ ? b.grad_out.shape : Shape{0, 0, 0, 0}};
  float* const totals = b.workspace.as<float>();
  const BatchNormState state(channels_, b.saved.data);
  const BatchNormVectors v = batch_norm_vectors(state, b.weights, 0);
  const GradIn* residual = has_residual_ ? &b.grad_in[1] : nullptr;
  const bool has_bits = has_mask_bits(b.in[0].dtype, channels_);
  const Mask mask = !has_relu_ ? Mask::none : !has_residual_ ? Mask::recompute : has_bits ? Mask::bits : Mask::output;
  const void* const mask_source = mask == Mask::bits ? static_cast<const void*>(layout.bits(b.saved)) : b.out.data;
  const bool trains = static_cast<bool>(b.grad_weights[0]) || static_cast<bool>(b.grad_weights[1]);
  const bool passes_on = b.grad_in[0].mode != GradMode::skip, needs_means = passes_on && !uses_running_;

  if (trains || needs_means || (residual && residual->mode != GradMode::skip)) {
    GradSumArguments sums{.x = b.in[0], .grad_out = b.grad_out, .mask = mask, .mask_source = mask_source, .residual = {}, .adds_residual = false, .vectors = v};
    if (residual && residual->mode != GradMode::skip) sums.residual = residual->tensor, sums.adds_residual = residual->mode == GradMode::add;
    if (has_pool_) sums.x = {layout.pool(b.saved).largest, b.grad_out.shape, b.in[0].dtype};   // where windows' gradients go
    const BackwardEnd end = batch_norm_backward_end(b, 0, state, totals);
    batch_norm_grad_sums(b.device, sums, layout.partial(b.workspace), end);
    if (needs_means && b.exchange) {
      b.exchange->sum(b.device, {totals, vector_shape(2 * channels_), DType::f32});
      batch_norm_average(b.device, end);
    }
  }
  if (!passes_on) return;
  const float* means = needs_means ? totals : nullptr;
  if (has_pool_) return batch_norm_pool_grad_apply(b.device, b.in[0], b.grad_out, b.grad_in[0], v, means, layout.pool(b.saved));
  // The residual's gradient, when it was written and not added to, is grad_out under the mask: the mask need not be read again.
  const bool is_masked = residual && residual->mode == GradMode::write;
  const Tensor grad_out = is_masked ? residual->tensor : b.grad_out;
  dispatch(b.in[0].dtype, [&]<class T>(T) {
    if (mask == Mask::none || is_masked) grad_apply<T, Mask::none>(b, v, grad_out, mask_source, means);
    else if (mask == Mask::output) grad_apply<T, Mask::output>(b, v, grad_out, mask_source, means);
    else if (mask == Mask::bits) grad_apply<T, Mask::bits>(b, v, grad_out, mask_source, means);
    else grad_apply<T, Mask::recompute>(b, v, grad_out, mask_source, means);
  });
}

Value batch_norm(Value x, const std::string& name, const BatchNormOptions& options) {
  const Value in[] = {x};
  return x.graph().append<BatchNorm>(in, name, x.channels(), options);
}

}  // namespace lockstep
