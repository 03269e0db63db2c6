#include "layers/batch_norm.hpp"

#include "layers/batch_norm_sums.hpp"

namespace lockstep {
namespace {

/// Where one call finds its vectors and sums.  Saved: what forward leaves for backward; scratch: the rest.  Each array begins a packet.
struct Memory {
  float *mean, *inv_std, *inverse_count;   // [c], [c], [1]: of the group's images
  float* totals;                           // [2c + count_parts]
  float* partial;                          // batch_norm_partials
  static std::int64_t room(std::int64_t count) { return (count + 7) / 8 * 8; }
  static std::size_t saved_bytes(std::int64_t c) { return static_cast<std::size_t>(2 * room(c) + room(1)) * sizeof(float); }
  static std::size_t workspace_bytes(const Shape& x, DType dtype) {
    return static_cast<std::size_t>(room(2 * x.c + count_parts) + batch_norm_partials(x, dtype)) * sizeof(float) + saved_bytes(x.c);
  }
  Memory(std::int64_t c, Tensor saved, Tensor workspace) {
    totals = workspace.as<float>();
    mean = saved ? saved.as<float>() : totals + room(2 * c + count_parts);
    inv_std = mean + room(c), inverse_count = inv_std + room(c);
    partial = totals + room(2 * c + count_parts) + 2 * room(c) + room(1);
  }
};

/// Where backward finds the relu's bits of x behind the vectors.
std::uint8_t* mask_bits(std::int64_t c, Tensor saved) { return saved.as<std::uint8_t>() + Memory::saved_bytes(c); }

Tensor totals_tensor(const Memory& m, std::int64_t elements) { return {m.totals, vector_shape(elements), DType::f32}; }

}  // namespace

/// Statistics from the group's totals.
void batch_norm_finish(const Device& device, const ForwardEnd& end) {
  Kokkos::parallel_for("batch_norm.finish", range(device, end.c), KOKKOS_LAMBDA(std::int64_t i) { end.finish_exchanged(i); });
}

/// Forward's end from sums of x and of its square.
void batch_norm_take_sums(const Device& device, const float* sums, const float* center, const ForwardEnd& end) {
  Kokkos::parallel_for("batch_norm.take_sums", range(device, end.c), KOKKOS_LAMBDA(std::int64_t i) {
    const double rows = static_cast<double>(end.rows), k = center[i], sum = sums[i], squares = sums[end.c + i];
    end(i, sum - rows * k, squares - 2 * k * sum + rows * k * k);
  });
}

/// Means from the group's sums.
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
                                             b.grad_in[0].mode == GradMode::add, v, means, means ? means + x.c : nullptr, x.c}, Walk::backwards);
}

}  // namespace

std::string BatchNorm::kind() const {
  return std::string("batch_norm") + (has_residual_ ? "+add" : "") + (has_relu_ ? "+relu" : "");
}

Shape BatchNorm::output(Shapes in) const {
  require(in[0].c == channels_, "batch_norm: an input of ", in[0].c, " channels does not fit ", channels_, " scales");
  if (has_residual_) require(in[1] == in[0], "batch_norm + add: ", text(in[0]), " and ", text(in[1]), " differ");
  return in[0];
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
  const bool keeps_mask = has_relu_ && has_residual_, has_bits = keeps_mask && has_mask_bits(dtype, channels_);
  const std::size_t bytes_of_bits = has_bits ? static_cast<std::size_t>(in[0].size()) * size_of(dtype) / 16 : 0;
  return {.keeps_input = true, .keeps_output = keeps_mask && !has_bits, .saved_bytes = Memory::saved_bytes(channels_) + bytes_of_bits,
          .workspace_bytes = Memory::workspace_bytes(in[0], dtype), .grad_over_grad = true};
}

void BatchNorm::forward(const Forward& f) {
  const bool is_training = f.mode == Mode::training;
  const Memory m(channels_, is_training ? f.saved : Tensor{}, f.workspace);
  float *running_mean = f.buffers[0].as<float>(), *running_var = f.buffers[1].as<float>();
  if (!is_training || uses_running_) {
    batch_norm_running(f.device, channels_, options_.epsilon, running_mean, running_var, m.mean, m.inv_std);
  } else {
    const ForwardEnd end{.is_local = !f.exchange, .c = channels_, .rows = f.in[0].shape.n * f.in[0].shape.h * f.in[0].shape.w,
                         .momentum = options_.momentum, .epsilon = options_.epsilon, .totals = m.totals, .running_mean = running_mean,
                         .running_var = running_var, .mean = m.mean, .inv_std = m.inv_std, .inverse_count = m.inverse_count};
    if (f.in_sums) batch_norm_take_sums(f.device, f.in_sums.as<float>(), running_mean, end);
    else batch_norm_sums(f.device, f.in[0], running_mean, m.partial, end);
    if (f.exchange) {
      f.exchange->sum(f.device, totals_tensor(m, 2 * channels_ + count_parts));
      batch_norm_finish(f.device, end);
    }
  }
  const BatchNormVectors v{m.mean, m.inv_std, f.weights[0].as<float>(), f.weights[1].as<float>()};
  std::uint8_t* const bits = is_training && has_residual_ && has_relu_ && has_mask_bits(f.in[0].dtype, channels_) ? mask_bits(channels_, f.saved) : nullptr;
  dispatch(f.in[0].dtype, [&]<class T>(T) {
    if (has_residual_) has_relu_ ? apply<T, true, true>(f, v, bits) : apply<T, true, false>(f, v, bits);
    else has_relu_ ? apply<T, false, true>(f, v, bits) : apply<T, false, false>(f, v, bits);
  });
}

void BatchNorm::backward_input(const Backward& b) {
  const Memory m(channels_, b.saved, b.workspace);
  const BatchNormVectors v{m.mean, m.inv_std, b.weights[0].as<float>(), b.weights[1].as<float>()};
  const GradIn* residual = has_residual_ ? &b.grad_in[1] : nullptr;
  const bool has_bits = has_mask_bits(b.in[0].dtype, channels_);
  const Mask mask = !has_relu_ ? Mask::none : !has_residual_ ? Mask::recompute : has_bits ? Mask::bits : Mask::output;
  const void* const mask_source = mask == Mask::bits ? static_cast<const void*>(mask_bits(channels_, b.saved)) : b.out.data;
  const bool trains = static_cast<bool>(b.grad_weights[0]) || static_cast<bool>(b.grad_weights[1]);
  const bool passes_on = b.grad_in[0].mode != GradMode::skip, needs_means = passes_on && !uses_running_;

  if (trains || needs_means || (residual && residual->mode != GradMode::skip)) {
    GradSumArguments sums{.x = b.in[0], .grad_out = b.grad_out, .mask = mask, .mask_source = mask_source, .residual = {}, .adds_residual = false, .vectors = v};
    if (residual && residual->mode != GradMode::skip) sums.residual = residual->tensor, sums.adds_residual = residual->mode == GradMode::add;
    const BackwardEnd end{.is_local = !b.exchange, .c = channels_, .inv_std = m.inv_std, .inverse_count = m.inverse_count,
                          .grad_weight = b.grad_weights[0].as<float>(), .grad_bias = b.grad_weights[1].as<float>(), .adds = b.weight_mode == GradMode::add,
                          .totals = m.totals};
    batch_norm_grad_sums(b.device, sums, m.partial, end);
    if (needs_means && b.exchange) {
      b.exchange->sum(b.device, totals_tensor(m, 2 * channels_));
      batch_norm_average(b.device, end);
    }
  }
  if (!passes_on) return;
  // The residual's gradient, when it was written and not added to, is grad_out under the mask: y need not be read again.
  const bool is_masked = residual && residual->mode == GradMode::write;
  const Tensor grad_out = is_masked ? residual->tensor : b.grad_out;
  const float* means = needs_means ? m.totals : nullptr;
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
