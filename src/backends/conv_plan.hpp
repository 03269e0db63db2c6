// conv_plan: one way to compute one direction of a convolution on a GPU: cuDNN's (cudnn_plan), cuBLAS' (cublas_plan) or lockstep's own (direct_plan).
// cudnn_conv gathers the plans of a problem, times them once and keeps the fastest by name.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/conv.hpp"

namespace lockstep {

enum class ConvDirection { forward, grad_input, grad_weight };

struct PlanRequest {
  ConvProblem problem;                   // without bias; input_channels 0
  ConvDirection direction = ConvDirection::forward;
  bool adds = false;                     // grad_input: to what grad_x holds
  bool sums = false;                     // forward: writes sums, too
  bool is_deterministic = true;          // no plan whose equal inputs may give other bits
  std::size_t most_workspace = 0;        // bytes
};

/// What one call reads and writes, NHWC and [k, r, s, c], all of the problem's dtype but sums.
/// forward: x, weight -> y (and sums).  grad_input: grad_x, weight <- y.  grad_weight: x, grad_weight <- y.
struct PlanOperands {
  void *x = nullptr, *weight = nullptr, *y = nullptr;
  float* sums = nullptr;                 // [sum_parts, 2, k]: of y over the pixels of a part of the images, and of its square; the parts make up all
  void* workspace = nullptr;             // 256-byte aligned
};

/// Bound of what a plan's sum_parts may be.
inline std::int64_t sum_parts_bound(const ConvProblem& problem) { return problem.k <= 64 ? 1024 : 1; }

class ConvPlan {
 public:
  virtual ~ConvPlan() = default;
  virtual std::size_t workspace_bytes() const = 0;
  /// How many partial sums a forward with sums leaves: the reader adds them, in order.
  virtual std::int64_t sum_parts() const { return 1; }
  /// Equal on every start, without tabs: cuDNN's engine and knobs, "62 3=1 17=4", or "cublas ..." or "direct ...".
  virtual std::string name() const = 0;
  /// Whether all sums are of f32; others are taken only where their result shows no difference.
  virtual bool is_strict() const { return true; }
  /// On the device's current stream.  Equal bits for equal inputs, if the request asked for that.
  virtual void run(Device& device, const PlanOperands& operands) const = 0;
};
using ConvPlans = std::vector<std::unique_ptr<ConvPlan>>;

/// A plan that is not made yet: making one can take a library tens of milliseconds.
struct PlanOffer {
  bool is_strict = true;                 // as ConvPlan's
  bool is_last_resort = false;           // fits any problem, and takes a hundred times as long as others: for want of them
  std::function<std::unique_ptr<ConvPlan>()> make;   // null: it cannot be had after all
};

}  // namespace lockstep
