// optimizer: one update of all weights: finite check, clip, SGD or AdamW over the flat buffers, commit or rollback of BN statistics.
// Everything is decided on the device: a skipped step changes nothing but the loss scale and the skip counters.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "graph/graph.hpp"
#include "tensor/parameters.hpp"

namespace lockstep {

/// Read by the host at log points; lives in device memory.
struct OptimizerStatus {
  std::int64_t updates = 0;              // made so far
  std::int64_t skipped = 0;              // steps skipped so far (fp16)
  std::int64_t skipped_in_row = 0;
  std::int64_t good_in_row = 0;          // since the loss scale last changed
  std::int64_t diverged_step = -1;       // fp32, tf32, bf16: the first step with a non-finite value; all later updates are off
  float grad_norm = 0;                   // of the last step, unscaled, before clipping
  float loss_scale = 1;
};

/// Bytes of an optimizer's moments for so many weights: what `lockstep check` adds to its estimate.
std::size_t moment_bytes(const OptimizerConfig& config, std::int64_t elements);

class Optimizer {
 public:
  /// parameters: bound, and their frozen slices and rate factors marked.  rates: learning rate by update, one or more (a device table is made of it), see
  /// schedule's rate_table(); beyond its end the last one holds.  is_scaling: fp16's loss scale, dynamic unless config fixes it.
  Optimizer(Device& device, const OptimizerConfig& config, Parameters& parameters, std::span<const float> rates, bool is_scaling);
  ~Optimizer();
  /// Bytes of its state beside the parameters' own buffers.
  std::size_t state_bytes() const;
  /// Queues one update from the gradients (already summed over ranks, already divided by the global count, still times step->loss_scale).
  /// Reads and advances step->updates, reads step->plateau_factor, writes step->loss_scale.
  /// nonfinite_losses: device memory; images of this step over all ranks whose loss was not finite.
  void enqueue_update(Device& device, StepState* step, const float* nonfinite_losses);
  /// Waits and copies.
  OptimizerStatus status(Device& device) const;
  /// What a fresh run's first step needs in step->updates and step->loss_scale.  Waits.
  void start(Device& device, StepState* step) { set_status(device, status(device), step); }
  /// Waits.  Writes step->updates and step->loss_scale too.
  /// With diverged_step = 0 updates are off: enqueue_update() then changes no weight, moment, statistic or counter (for trial runs).
  void set_status(Device& device, const OptimizerStatus& status, StepState* step);

  /// State by slice for checkpoints: names of the moments ("momentum_buffer"; "exp_avg", "exp_avg_sq") and their flat f32 tensors, laid
  /// out as the parameters.  SGD without momentum has none.
  struct Moment { std::string name; Tensor values; };
  std::vector<Moment> moments() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
