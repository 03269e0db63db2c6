#include "layers/batch_norm.hpp"

#include "layers/batch_norm_kernels.hpp"

namespace lockstep {
namespace {

/// Where one call finds its vectors and sums.  Saved: what forward leaves for backward; scratch: the rest.
struct Memory {
  float *mean, *inv_std, *inverse_count;   // [c], [c], [1]: of the group's images
  float* totals;                           // [2c + count_parts]
  float* partial;                          // [chunks, 2, c]
  static std::size_t saved_bytes(std::int64_t c) { return static_cast<std::size_t>(2 * c + 1) * sizeof(float); }
  static std::size_t workspace_bytes(const Shape& x) {
    return static_cast<std::size_t>(2 * x.c + count_parts + chunk_bound(x) * 2 * x.c) * sizeof(float) + saved_bytes(x.c);
  }
  Memory(std::int64_t c, Tensor saved, Tensor workspace) {
    totals = workspace.as<float>();
    float* vectors = saved ? saved.as<float>() : totals + 2 * c + count_parts;
    partial = totals + 2 * c + count_parts + 2 * c + 1;
    mean = vectors, inv_std = vectors + c, inverse_count = vectors + 2 * c;
  }
};

Tensor totals_tensor(const Memory& m, std::int64_t elements) { return {m.totals, vector_shape(elements), DType::f32}; }

}  // namespace

/// totals [2c] = partial sums of all chunks, in order; [2c, 2c + 1] = this rank's count of values.
void batch_norm_total(const Device& device, const RowCut& cut, const float* partial, float* totals) {
  const std::int64_t c = cut.c, chunks = cut.chunks(), rows = cut.rows;
  Kokkos::parallel_for("batch_norm.total", range(device, c), KOKKOS_LAMBDA(std::int64_t i) {
    double sum = 0, squares = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * 2 * c + i], squares += partial[chunk * 2 * c + c + i];
    totals[i] = static_cast<float>(sum);
    totals[c + i] = static_cast<float>(squares);
    if (i == 0) {
      const auto base = static_cast<std::int64_t>(count_base);
      totals[2 * c] = static_cast<float>(rows % base);
      totals[2 * c + 1] = static_cast<float>(rows / base);
    }
  });
}

/// Mean and 1 / std of the group from its totals; advances the running statistics.  No values at all: nothing advances.
void batch_norm_finish(const Device& device, std::int64_t c, const float* totals, BatchNormOptions options, float* running_mean, float* running_var,
                       float* mean, float* inv_std, float* inverse_count) {
  Kokkos::parallel_for("batch_norm.finish", range(device, c), KOKKOS_LAMBDA(std::int64_t i) {
    const double count = static_cast<double>(totals[2 * c]) + static_cast<double>(count_base) * totals[2 * c + 1];
    double variance = running_var[i], center = running_mean[i];
    if (count > 0) {
      const double offset = totals[i] / count;
      center += offset;
      variance = totals[c + i] / count - offset * offset;
      if (variance < 0) variance = 0;                                    // rounding; a NaN stays one
      const double unbiased = count > 1 ? variance * (count / (count - 1)) : variance;
      running_mean[i] = static_cast<float>((1 - options.momentum) * running_mean[i] + options.momentum * center);
      running_var[i] = static_cast<float>((1 - options.momentum) * running_var[i] + options.momentum * unbiased);
    }
    mean[i] = static_cast<float>(center);
    inv_std[i] = static_cast<float>(1 / Kokkos::sqrt(variance + options.epsilon));
    if (i == 0) *inverse_count = count > 0 ? static_cast<float>(1 / count) : 0.f;
  });
}

/// The running statistics as they are.
void batch_norm_running(const Device& device, std::int64_t c, double epsilon, const float* running_mean, const float* running_var, float* mean, float* inv_std) {
  Kokkos::parallel_for("batch_norm.running", range(device, c), KOKKOS_LAMBDA(std::int64_t i) {
    mean[i] = running_mean[i];
    inv_std[i] = static_cast<float>(1 / Kokkos::sqrt(static_cast<double>(running_var[i]) + epsilon));
  });
}

/// grad_weight = sum of g * xhat, grad_bias = sum of g, over this rank.
void batch_norm_grad_weights(const Device& device, std::int64_t c, const float* totals, const float* inv_std, float* grad_weight, float* grad_bias, bool adds) {
  Kokkos::parallel_for("batch_norm.grad_weights", range(device, c), KOKKOS_LAMBDA(std::int64_t i) {
    if (grad_weight) grad_weight[i] = (adds ? grad_weight[i] : 0.f) + totals[c + i] * inv_std[i];
    if (grad_bias) grad_bias[i] = (adds ? grad_bias[i] : 0.f) + totals[i];
  });
}

/// totals [2c]: sums of g and g * (x - mean) over the group -> their means, the second of g * xhat.
void batch_norm_grad_means(const Device& device, std::int64_t c, const float* inv_std, const float* inverse_count, float* totals) {
  Kokkos::parallel_for("batch_norm.grad_means", range(device, c), KOKKOS_LAMBDA(std::int64_t i) {
    totals[i] *= *inverse_count;
    totals[c + i] *= *inverse_count * inv_std[i];
  });
}

namespace {

template <class T, bool has_residual, bool has_relu>
void apply(const Forward& f, const BatchNormVectors& v) {
  const T* residual = has_residual ? f.in[1].as<T>() : nullptr;
  for_each_block("batch_norm.apply", f.device, cut_rows(f.out.shape, few_rows),
                 BatchNormApply<T, has_residual, has_relu>{f.in[0].as<T>(), residual, f.out.as<T>(), v, f.out.shape.c});
}

template <class T, Mask mask>
void grad_sum(const Backward& b, const BatchNormVectors& v, const GradIn* residual, float* partial) {
  const bool is_wanted = residual && residual->mode != GradMode::skip;
  const Shape& x = b.in[0].shape;
  for_each_block("batch_norm.grad_sum", b.device, cut_statistics(x),
                 BatchNormGradSum<T, mask>{b.in[0].as<T>(), b.out.as<T>(), b.grad_out.as<T>(), is_wanted ? residual->tensor.as<T>() : nullptr,
                                           is_wanted && residual->mode == GradMode::add, v, partial, x.c});
}

template <class T, Mask mask>
void grad_apply(const Backward& b, const BatchNormVectors& v, Tensor grad_out, const float* means) {
  const Shape& x = b.in[0].shape;
  for_each_block("batch_norm.grad_apply", b.device, cut_rows(x, few_rows),
                 BatchNormGradApply<T, mask>{b.in[0].as<T>(), b.out.as<T>(), grad_out.as<T>(), b.grad_in[0].tensor.as<T>(),
                                             b.grad_in[0].mode == GradMode::add, v, means, means ? means + x.c : nullptr, x.c});
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

Needs BatchNorm::needs(DType, Shapes in) const {
  return {.keeps_input = true, .keeps_output = has_relu_ && has_residual_, .saved_bytes = Memory::saved_bytes(channels_),
          .workspace_bytes = Memory::workspace_bytes(in[0]), .grad_over_grad = true};
}

void BatchNorm::forward(const Forward& f) {
  const bool is_training = f.mode == Mode::training;
  const Memory m(channels_, is_training ? f.saved : Tensor{}, f.workspace);
  float *running_mean = f.buffers[0].as<float>(), *running_var = f.buffers[1].as<float>();
  if (!is_training || uses_running_) {
    batch_norm_running(f.device, channels_, options_.epsilon, running_mean, running_var, m.mean, m.inv_std);
  } else {
    const RowCut cut = cut_statistics(f.in[0].shape);
    dispatch(f.in[0].dtype, [&]<class T>(T) {
      for_each_block("batch_norm.sum", f.device, cut, BatchNormSum<T>{f.in[0].as<T>(), running_mean, m.partial, channels_});
    });
    batch_norm_total(f.device, cut, m.partial, m.totals);
    if (f.exchange) f.exchange->sum(f.device, totals_tensor(m, 2 * channels_ + count_parts));
    batch_norm_finish(f.device, channels_, m.totals, options_, running_mean, running_var, m.mean, m.inv_std, m.inverse_count);
  }
  const BatchNormVectors v{m.mean, m.inv_std, f.weights[0].as<float>(), f.weights[1].as<float>()};
  dispatch(f.in[0].dtype, [&]<class T>(T) {
    if (has_residual_) has_relu_ ? apply<T, true, true>(f, v) : apply<T, true, false>(f, v);
    else has_relu_ ? apply<T, false, true>(f, v) : apply<T, false, false>(f, v);
  });
}

void BatchNorm::backward_input(const Backward& b) {
  const Memory m(channels_, b.saved, b.workspace);
  const BatchNormVectors v{m.mean, m.inv_std, b.weights[0].as<float>(), b.weights[1].as<float>()};
  const GradIn* residual = has_residual_ ? &b.grad_in[1] : nullptr;
  const Mask mask = !has_relu_ ? Mask::none : has_residual_ ? Mask::output : Mask::recompute;
  const bool trains = static_cast<bool>(b.grad_weights[0]) || static_cast<bool>(b.grad_weights[1]);
  const bool passes_on = b.grad_in[0].mode != GradMode::skip, needs_means = passes_on && !uses_running_;

  if (trains || needs_means || (residual && residual->mode != GradMode::skip)) {
    dispatch(b.in[0].dtype, [&]<class T>(T) {
      if (mask == Mask::none) grad_sum<T, Mask::none>(b, v, residual, m.partial);
      else if (mask == Mask::output) grad_sum<T, Mask::output>(b, v, residual, m.partial);
      else grad_sum<T, Mask::recompute>(b, v, residual, m.partial);
    });
  }
  if (trains || needs_means) batch_norm_total(b.device, cut_statistics(b.in[0].shape), m.partial, m.totals);
  if (trains)
    batch_norm_grad_weights(b.device, channels_, m.totals, m.inv_std, b.grad_weights[0].as<float>(), b.grad_weights[1].as<float>(), b.weight_mode == GradMode::add);
  if (!passes_on) return;
  if (needs_means) {
    if (b.exchange) b.exchange->sum(b.device, totals_tensor(m, 2 * channels_));
    batch_norm_grad_means(b.device, channels_, m.inv_std, m.inverse_count, m.totals);
  }
  // The residual's gradient, when it was written and not added to, is grad_out under the mask: y need not be read again.
  const bool is_masked = residual && residual->mode == GradMode::write;
  const Tensor grad_out = is_masked ? residual->tensor : b.grad_out;
  const float* means = needs_means ? m.totals : nullptr;
  dispatch(b.in[0].dtype, [&]<class T>(T) {
    if (mask == Mask::none || is_masked) grad_apply<T, Mask::none>(b, v, grad_out, means);
    else if (mask == Mask::output) grad_apply<T, Mask::output>(b, v, grad_out, means);
    else grad_apply<T, Mask::recompute>(b, v, grad_out, means);
  });
}

Value batch_norm(Value x, const std::string& name, const BatchNormOptions& options) {
  const Value in[] = {x};
  return x.graph().append<BatchNorm>(in, name, x.channels(), options);
}

}  // namespace lockstep
