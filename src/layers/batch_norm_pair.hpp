// batch_norm_pair: relu(norm of a + norm of b) as one layer, where a residual block's shortcut has a batch norm of its own.
// Beside two of them: neither normalized image nor its gradient is stored, and a group's sums of both travel together.
#pragma once
#include "layers/batch_norm.hpp"

namespace lockstep {

/// Shapes   in: a, b [n, h, w, c]; y the same.  Parameters and buffers: batch_norm's of a, then of b.
/// Else     as BatchNorm.
class BatchNormPair final : public Layer {
 public:
  BatchNormPair(const BatchNorm& a, const BatchNorm& b) : channels_(a.channels()), options_{a.options(), b.options()} {}

  std::string kind() const override { return "batch_norm+batch_norm+relu"; }
  Shape output(Shapes in) const override { return in[0]; }
  Needs needs(DType dtype, Shapes in) const override;
  void forward(const Forward& f) override;
  void backward_input(const Backward& b) override;
  bool is_normalization() const override { return true; }
  bool takes_sums(std::size_t input) const override { return !uses_running_[input]; }
  void use_running_statistics(std::size_t which) override { uses_running_[which] = true; }

 private:
  std::int64_t channels_;
  BatchNormOptions options_[2];
  bool uses_running_[2] = {false, false};
};

}  // namespace lockstep
