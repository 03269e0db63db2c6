// batch_norm_sums: the two sums a channel over all rows that each direction of batch norm needs.
// In: arrays [rows, c].  Out: both sums of each channel, handed to what makes statistics or gradients of them.  batch_norm_sums_host.cpp: Kokkos; batch_norm_sums_cuda.cpp: shared memory.
// An order of summation that only the shape decides: equal bits for equal inputs.
#pragma once
#include "layers/batch_norm_kernels.hpp"

namespace lockstep {

/// f32 elements of scratch for so many sums over images of this shape, and over every smaller batch.
std::int64_t batch_norm_partials(const Shape& x, DType dtype, int sums);

/// end(channel, {sum of x - center, sum of its square}) for each channel.
void batch_norm_sums(const Device& device, Tensor x, const float* center, float* partial, const ForwardEnd& end);

/// The same from sums that another layer took, f32 [parts, 2, c]: of x and of its square.
void batch_norm_take_sums(const Device& device, Tensor sums, const RawForwardEnd& end);

/// What backward sums: g and g * (x - mean), where g is grad_out under the relu's mask.  residual = g or += g on the way.
struct GradSumArguments {
  Tensor x, grad_out;
  Mask mask = Mask::none;
  const void* mask_source = nullptr;     // y, or bits
  Tensor residual;                       // empty: not wanted
  bool adds_residual = false;
  BatchNormVectors vectors{};
};
/// What backward sums of relu(norm of a + norm of b): g, g * (a - mean of a) and g * (b - mean of b).
struct PairGradSumArguments {
  Tensor a, b, grad_out;
  Mask mask = Mask::output;              // or bits
  const void* mask_source = nullptr;
  BatchNormVectors of_a{}, of_b{};
};
void batch_norm_pair_grad_sums(const Device& device, const PairGradSumArguments& arguments, float* partial, const PairBackwardEnd& end);
void batch_norm_grad_sums(const Device& device, const GradSumArguments& a, float* partial, const BackwardEnd& end);

}  // namespace lockstep
