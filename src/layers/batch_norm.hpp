// batch_norm: the layer's class, for fusion, which may give it an addition and a relu.  Kernels: batch_norm_kernels.hpp.
#pragma once
#include "layers/layers.hpp"

namespace lockstep {

/// y = (x - mean) / sqrt(variance + epsilon) * weight + bias, then optionally + in[1], then optionally relu.
/// Shapes   x, y, in[1] [n, h, w, c]; weight, bias, running_mean, running_var [c].
/// Dtypes   x, y, in[1] f32 | f16 | bf16; the rest f32; sums, of x - K with K the running mean, accumulate in f32, chunks in f64.
/// Ranks    with an exchange collective in both directions: every rank calls, n may differ and be 0; counts travel with the sums.
/// Sums     of its input that came with it are used instead of a pass over it: in f32, not centered on K.
/// Weights' gradients are sums over this rank's images; only grad x needs the group's.
/// Source   Ioffe and Szegedy 2015, alg. 1; running statistics as PyTorch's: unbiased variance, momentum is the weight of the new value.
class BatchNorm final : public Layer {
 public:
  BatchNorm(std::int64_t channels, const BatchNormOptions& options) : channels_(channels), options_(options) {}

  std::string kind() const override;
  Shape output(Shapes in) const override;
  std::vector<ParameterSpec> parameters() const override;
  std::vector<BufferSpec> buffers() const override;
  Needs needs(DType dtype, Shapes in) const override;
  void forward(const Forward& f) override;
  void backward_input(const Backward& b) override;
  bool is_normalization() const override { return true; }
  bool takes_sums() const override { return !uses_running_; }
  void use_running_statistics() override { uses_running_ = true; }

  void fuse_add() { has_residual_ = true; }   // the node gets a second input
  void fuse_relu() { has_relu_ = true; }

 private:
  std::int64_t channels_;
  BatchNormOptions options_;
  bool has_residual_ = false, has_relu_ = false, uses_running_ = false;
};

}  // namespace lockstep
