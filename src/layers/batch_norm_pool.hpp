// batch_norm_pool: batch norm's last pass, with its relu, and the max pool behind it as one: the normalized image is never stored.
#pragma once
#include "layers/batch_norm_kernels.hpp"
#include "layers/pool.hpp"

namespace lockstep {

/// What the pass leaves for backward, both [n, p, q, c]: the place of each window's largest and x there.  Backward's two sums over the image are
/// sums over the windows then: a quarter of the image, and no search for the windows that hold a pixel.
struct PoolSaved {
  std::uint8_t* argmax = nullptr;        // places 0 to 8, four bits each where mask bits would be left, else a byte; null: evaluation
  void* largest = nullptr;               // of x's dtype
};

/// Bytes of argmax.
inline std::size_t place_bytes(const Shape& y, DType dtype) { return static_cast<std::size_t>(y.size()) / (has_mask_bits(dtype, y.c) ? 2 : 1); }

/// The windows it is made for: 3x3, stride 2, pad 1, a ResNet stem's.
constexpr PoolWindow stem_window{.kernel = 3, .stride = 2, .pad = 1};

/// y [n, p, q, c] = the largest of relu((x - mean) * inv_std * weight + bias) in each window of x [n, h, w, c].
void batch_norm_pool_apply(const Device& device, Tensor x, Tensor y, const BatchNormVectors& vectors, const PoolSaved& saved);

/// grad_x = weight * inv_std * (g - mean_grad - xhat * mean_grad_xhat), where g is grad_y [n, p, q, c] at the pixels that were largest, under
/// the relu's mask; or += that.  means: f32 [2, c], or null: statistics are constants.
void batch_norm_pool_grad_apply(const Device& device, Tensor x, Tensor grad_y, const GradIn& grad_x, const BatchNormVectors& vectors, const float* means,
                                const PoolSaved& saved);

}  // namespace lockstep
