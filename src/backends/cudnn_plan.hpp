// cudnn_plan: what cuDNN's graph API can do with one convolution, as plans that are named, timed and run.
// In: a request.  Out: the plans that fit it, without atomics whose order changes the result where it forbids them.
#pragma once
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

/// Plans that cuDNN offers, its own favourite first, strict ones before the others.
std::vector<PlanOffer> cudnn_offers(const std::shared_ptr<Cudnn>& cudnn, const PlanRequest& request);
/// The plan of that name; null where this cuDNN has none.
std::unique_ptr<ConvPlan> cudnn_plan(const std::shared_ptr<Cudnn>& cudnn, const PlanRequest& request, const std::string& name);

}  // namespace lockstep
