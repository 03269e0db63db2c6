// direct_plan: lockstep's own convolutions for GPUs, 16-bit, by tensor cores (sm_80 and newer), of two kinds.
// 3x3, pad 1, stride 1 or 2, few channels: such a layer of a CIFAR net fits into the second-level cache and is worth 3 us; libraries made for
// large layers take 16 us for it (H200).
// First layers: 5x5 to 11x11, stride 2 or 4, of images with 4 channels, to 64: bound by memory, for which libraries take three times as long.
// In: a PlanRequest.  Out: the plans that fit it, which differ in how much of the layer a block takes.
#pragma once
#include "backends/conv_plan.hpp"

namespace lockstep {

/// The promising ones, best guess first; none where the problem is of another kind, or the current GPU too old, or this build for CPUs.
ConvPlans direct_plans(const PlanRequest& request, std::size_t most = 6);
/// The plan of that name, "direct rows=8 images=1 channels=16 tile=4"; null where there is none.
std::unique_ptr<ConvPlan> direct_plan(const PlanRequest& request, const std::string& name);

}  // namespace lockstep
