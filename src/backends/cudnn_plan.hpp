// cudnn_plan: what cuDNN's graph API can do with one convolution, as plans that are named, timed and run.
// In: a request.  Out: the plans that fit it, without atomics whose order changes the result where it forbids them.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "backends/conv_plan.hpp"

namespace lockstep {

/// cuDNN on one device.  One for all operators of a process; made with the first and gone with the last.
class Cudnn {
 public:
  static std::shared_ptr<Cudnn> of_this_process();
  virtual ~Cudnn() = default;
  virtual std::string version() const = 0;
};

/// Plans that cuDNN offers, its own favourite first; at most `count`, strict ones before the others.
ConvPlans cudnn_plans(const std::shared_ptr<Cudnn>& cudnn, const PlanRequest& request, std::size_t count);
/// The plan of that name; null where this cuDNN has none.
std::unique_ptr<ConvPlan> cudnn_plan(const std::shared_ptr<Cudnn>& cudnn, const PlanRequest& request, const std::string& name);

/// Milliseconds that fn takes on the device's current stream, the best of a few runs after a first; of one, if that took longer than `hopeless`.
double device_milliseconds(Device& device, const std::function<void()>& fn, double hopeless);

}  // namespace lockstep
