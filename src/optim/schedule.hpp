// schedule: updates -> learning rate.  Pure, except plateau, whose best value and count are progress of the run.
#pragma once
#include <cstdint>
#include <vector>

#include "base/config.hpp"

namespace lockstep {

struct SchedulePlan {
  double base_rate = 0;                  // already scaled to the global batch
  std::int64_t steps_per_epoch = 1, epochs = 1;
};

/// learning_rate x global_batch / reference_batch (reference_batch 0: as given).
double scaled_rate(const OptimizerConfig& config, std::int64_t global_batch);
/// The rate of update s, counted from 0.  Warm-up: (s + 1) / (warmup steps) of what the schedule says; cosine and polynomial run over what is
/// left after warm-up.  By epoch: e = s / steps_per_epoch.  plateau and constant: base_rate after warm-up.
double rate_at(const ScheduleConfig& config, const SchedulePlan& plan, std::int64_t update);
/// rate_at for every update of the run.
std::vector<float> rate_table(const ScheduleConfig& config, const SchedulePlan& plan);

/// PyTorch's ReduceLROnPlateau (mode min, relative threshold): fed once an epoch with the mean training loss.
struct Plateau {
  double best = 1e300;
  std::int64_t bad_epochs = 0;
  float factor = 1;
  void observe(const ScheduleConfig& config, double epoch_loss);
};

}  // namespace lockstep
