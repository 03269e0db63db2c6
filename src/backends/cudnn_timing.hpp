// cudnn_timing: which of several plans of one call is the fastest here, on numbers like a training's.
#pragma once
#include <memory>
#include <vector>

#include "backends/conv_plan.hpp"
#include "tensor/device.hpp"

namespace lockstep {

struct TimedPlan {
  std::unique_ptr<ConvPlan> plan;        // null: there is none
  double milliseconds = 0;
};

/// Holds the operands of one call.
class PlanTimer {
 public:
  PlanTimer(Device& device, const PlanRequest& request);
  /// Of what is offered, strict plans first.  A plan that is not strict is taken where it gives what a strict one gives, to three roundings of the
  /// dtype (root of the mean square).
  TimedPlan fastest(const std::vector<PlanOffer>& offers);
  double milliseconds(const ConvPlan& plan) { return milliseconds(plan, endless); }
  double milliseconds_of_a_pass_over_y();

 private:
  static constexpr double endless = 1e9;
  PlanOperands operands_for(const ConvPlan& plan);
  /// What the layer before has just written lies in the cache, and nothing else.
  void make_cache_as_in_training();
  double milliseconds(const ConvPlan& plan, double hopeless);
  bool is_as_exact(const ConvPlan& plan, const ConvPlan& strict);

  Device& device_;
  PlanRequest request_;
  Allocation x_, weight_, y_, sums_, workspace_, other_;
};

}  // namespace lockstep
