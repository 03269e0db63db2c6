// batch_norm: the layer's class, for fusion, which may give it an addition, a relu and a max pool.  Kernels: batch_norm_kernels.hpp.
#pragma once
#include "layers/batch_norm_kernels.hpp"
#include "layers/layers.hpp"

namespace lockstep {

/// y = (x - mean) / sqrt(variance + epsilon) * weight + bias, then optionally + in[1], then optionally relu, then optionally max_pool.
/// Shapes   x, in[1] [n, h, w, c]; y the same, or the pool's [n, p, q, c]; weight, bias, running_mean, running_var [c].
/// Dtypes   x, y, in[1] f32 | f16 | bf16; the rest f32; sums, of x - K with K the running mean, accumulate in f32, chunks in f64.
/// Ranks    with an exchange collective in both directions: every rank calls, n may differ and be 0; counts travel with the sums.
/// Sums     of its input that came with it are used instead of a pass over it: in f32, not centered on K.
/// Weights' gradients are sums over this rank's images; only grad x needs the group's.
/// Source   Ioffe and Szegedy 2015, alg. 1; running statistics as PyTorch's: unbiased variance, momentum is the weight of the new value.
class BatchNorm final : public Layer {
 public:
  BatchNorm(std::int64_t channels, const BatchNormOptions& options) : channels_(channels), options_(options) {}
  std::int64_t channels() const { return channels_; }
  const BatchNormOptions& options() const { return options_; }

  std::string kind() const override;
  Shape output(Shapes in) const override;
  std::vector<ParameterSpec> parameters() const override;
  std::vector<BufferSpec> buffers() const override;
  Needs needs(DType dtype, Shapes in) const override;
  void forward(const Forward& f) override;
  void backward_input(const Backward& b) override;
  bool can_repeat() const override { return has_relu_ && !has_residual_ && !has_pool_; }   // reads one array, and nothing but its output is kept longer
  bool is_normalization() const override { return true; }
  bool takes_sums(std::size_t input) const override { return input == 0 && !uses_running_; }
  void use_running_statistics(std::size_t) override { uses_running_ = true; }

  void fuse_add() { has_residual_ = true; }   // the node gets a second input
  void fuse_relu() { has_relu_ = true; }
  void fuse_pool() { has_pool_ = true; }      // stem_window's; with a relu, without an addition

 private:
  std::int64_t channels_;
  BatchNormOptions options_;
  bool has_residual_ = false, has_relu_ = false, has_pool_ = false, uses_running_ = false;
};

/// What the forms of batch norm share.
/// Where mean and inv_std of normalization `which` (parameters 2 which, buffers 2 which) come from: f.in[which], its sums, or the running ones.
/// Fills the state and, if the group is more than this rank, totals [2c + count_parts], whose sum over the group batch_norm_finish takes.
void batch_norm_statistics(const Forward& f, std::size_t which, const BatchNormOptions& options, bool uses_running, const BatchNormState& state, float* totals,
                           float* partial);
/// Statistics from the group's totals.
void batch_norm_finish(const Forward& f, std::size_t which, const BatchNormOptions& options, const BatchNormState& state, float* totals);
BatchNormVectors batch_norm_vectors(const BatchNormState& state, std::span<const Tensor> weights, std::size_t which);
/// totals: f32 [2, c].
BackwardEnd batch_norm_backward_end(const Backward& b, std::size_t which, const BatchNormState& state, float* totals);
/// Means from the group's sums.
void batch_norm_average(const Device& device, const BackwardEnd& end);

}  // namespace lockstep
