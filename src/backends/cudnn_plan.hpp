// cudnn_plan: what cuDNN's graph API can do with one convolution, as plans that are named, timed and run.
// In: a ConvProblem and a direction.  Out: the plans that fit it, which write or add, without atomics whose order changes the result.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/conv.hpp"

namespace lockstep {

enum class ConvDirection { forward, grad_input, grad_weight };

/// cuDNN on one device.  One for all operators of a process; made with the first and gone with the last.
class Cudnn {
 public:
  static std::shared_ptr<Cudnn> of_this_process();
  virtual ~Cudnn() = default;
  virtual std::string version() const = 0;
};

/// One way to compute one direction.  Its operands are x, weight, y or their gradients, by position.
class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;
  virtual std::size_t workspace_bytes() const = 0;
  /// Engine and knobs, equal on every start: "62 3=1 17=4".
  virtual std::string name() const = 0;
  /// forward: x, weight -> y.  grad_input: grad_x, weight <- y.  grad_weight: x, grad_weight <- y.  On the device's current stream.
  virtual void run(Device& device, void* x, void* weight, void* y, void* workspace) const = 0;
};

struct PlanRequest {
  ConvProblem problem;
  ConvDirection direction = ConvDirection::forward;
  bool adds = false;                     // to what the result holds
  std::size_t most_workspace = 0;        // bytes
};

/// Plans that cuDNN offers, its own favourite first; at most `count`.  grad_weight is of the problem's dtype.
std::vector<std::unique_ptr<CudnnPlan>> cudnn_plans(const std::shared_ptr<Cudnn>& cudnn, const PlanRequest& request, std::size_t count);
/// The plan of that name; null where this cuDNN has none.
std::unique_ptr<CudnnPlan> cudnn_plan(const std::shared_ptr<Cudnn>& cudnn, const PlanRequest& request, const std::string& name);

/// Milliseconds that fn takes on the device's current stream, the best of a few runs after a first; of one, if that took longer than `hopeless`.
double device_milliseconds(Device& device, const std::function<void()>& fn, double hopeless);

}  // namespace lockstep
