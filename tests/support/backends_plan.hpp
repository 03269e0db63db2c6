// backends_plan: runs one plan of a convolution on arrays of its own, whose margins tell of writes outside.
#pragma once
#include "backends/conv_plan.hpp"
#include "support/backends_conv.hpp"

namespace lockstep::test {

inline constexpr const char* no_gpu = "these convolutions are for GPUs, and this build is for CPUs";

/// `distance` beyond what storing each number in dtype makes of it; and its product before it was added to something, where that is stored first.
inline double excess(const Numbers& want, Numbers got, DType dtype, const Numbers& product = {}) {
  if (want.size() != got.size()) return std::numeric_limits<double>::infinity();
  const double unit = std::ldexp(1, dtype == DType::f32 ? -24 : dtype == DType::f16 ? -11 : -8);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double away = got[i] - want[i], allowed = unit * (std::abs(want[i]) + (product.empty() ? 0 : std::abs(product[i])));
    if (std::isfinite(away)) got[i] = want[i] + std::copysign(std::max(0.0, std::abs(away) - allowed), away);
  }
  return distance(want, got);
}

struct PlanResult {
  Numbers written, sums;
  bool stayed_inside = true;
};

inline Numbers added_parts(const Numbers& parts, std::int64_t size) {
  Numbers sums(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < parts.size(); ++i) sums[i % sums.size()] += parts[i];
  return sums;
}

/// One run of a plan; what it does not read holds NaN.
inline PlanResult run_plan(Device& device, const ConvPlan& plan, const PlanRequest& request, const ConvInputs& in) {
  const ConvProblem& p = request.problem;
  const bool is_forward = request.direction == ConvDirection::forward, is_grad_input = request.direction == ConvDirection::grad_input;
  const Numbers none;
  const TestTensor x(device, p.input(), p.dtype, !is_grad_input ? in.x : request.adds ? in.from_x : none);
  const TestTensor weight(device, p.weight(), p.dtype, is_forward || is_grad_input ? in.weight : none), y(device, p.output(), p.dtype, is_forward ? none : in.grad_y);
  const TestTensor sums(device, vector_shape(plan.sum_parts() * 2 * p.k), DType::f32), workspace(device, vector_shape(static_cast<std::int64_t>(plan.workspace_bytes())), DType::u8);
  plan.run(device, {.x = Tensor(x).data, .weight = Tensor(weight).data, .y = Tensor(y).data, .sums = request.sums ? static_cast<float*>(Tensor(sums).data) : nullptr,
                    .workspace = Tensor(workspace).data});
  device.wait();
  PlanResult result{(is_forward ? y : is_grad_input ? x : weight).numbers(), request.sums ? added_parts(sums.numbers(), 2 * p.k) : none};
  for (const TestTensor* tensor : {&x, &weight, &y, &sums, &workspace}) result.stayed_inside = result.stayed_inside && tensor->is_margin_intact();
  return result;
}

}  // namespace lockstep::test
