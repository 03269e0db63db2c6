
#include <algorithm>
#include <utility>

#include "backends/direct_kernels.hpp"
#include "backends/direct_plan.hpp"
#include "tensor/cuda_check.hpp"

namespace lockstep {
namespace {

class DirectPlan final : public ConvPlan {
 public:
  explicit DirectPlan(DirectWay way) : way_(std::move(way)) {}
  std::size_t workspace_bytes() const override { return way_.workspace_bytes; }
  std::int64_t sum_parts() const override { return way_.sum_parts; }
  std::string name() const override { return way_.name; }
  void run(Device& device, const PlanOperands& operands) const override { way_.start(device.native_stream(device.current()), operands); }

 private:
  DirectWay way_;
};

/// Of the current GPU; none where it lacks the instructions.
GpuLimits gpu_limits() {
  int device = 0;
  check_cuda(cudaGetDevice(&device));
  const auto get = [&](cudaDeviceAttr attribute) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, attribute, device));
    return value;
  };
  if (get(cudaDevAttrComputeCapabilityMajor) < 8) return {};
  return {get(cudaDevAttrMultiProcessorCount), static_cast<std::size_t>(get(cudaDevAttrMaxSharedMemoryPerBlockOptin)),
          static_cast<std::size_t>(get(cudaDevAttrMaxSharedMemoryPerMultiprocessor))};
}

bool is_one_of(std::int64_t value, std::initializer_list<std::int64_t> values) { return std::find(values.begin(), values.end(), value) != values.end(); }

bool is_supported(const PlanRequest& request) {
  const ConvProblem& p = request.problem;
  if ((p.dtype != DType::f16 && p.dtype != DType::bf16) || p.has_bias || p.input_channels != 0 || p.r != p.s) return false;
  if (p.n < 1 || p.h < 1 || p.w < 1 || p.p() < 1 || p.q() < 1 || std::max({p.n, p.h, p.w}) > 1 << 20) return false;
  return (!request.sums || request.direction == ConvDirection::forward) && (!request.adds || request.direction == ConvDirection::grad_input);
}
bool is_small_window(const PlanRequest& request) {
  const ConvProblem& p = request.problem;
  if (p.r != 3 || p.pad != 1 || !is_one_of(p.stride, {1, 2}) || !is_one_of(p.k, {16, 32, 64})) return false;
  return is_one_of(p.c, {16, 32, 64}) || (request.direction != ConvDirection::grad_input && is_one_of(p.c, {4, 8}));
}
bool is_first_layer(const PlanRequest& request) {
  const ConvProblem& p = request.problem;
  return request.direction != ConvDirection::grad_input && p.c == 4 && p.k == 64 && is_one_of(p.r, {5, 7, 9, 11}) && p.pad <= p.r / 2 && is_one_of(p.stride, {2, 4});
}

/// Best guess first.
std::vector<DirectWay> ways_of(const PlanRequest& request) {
  const GpuLimits limits = gpu_limits();
  if (!is_supported(request) || limits.multiprocessors == 0) return {};
  const bool is_grad_weight = request.direction == ConvDirection::grad_weight;
  std::vector<DirectWay> ways;
  if (is_small_window(request)) ways = is_grad_weight ? direct_grad_weight_ways(request, limits) : direct_spatial_ways(request, limits);
  else if (is_first_layer(request)) ways = is_grad_weight ? direct_stem_grad_weight_ways(request, limits) : direct_stem_ways(request, limits);
  std::erase_if(ways, [&](const DirectWay& way) { return way.workspace_bytes > request.most_workspace; });
  std::stable_sort(ways.begin(), ways.end(), [](const DirectWay& a, const DirectWay& b) { return a.cost < b.cost; });
  return ways;
}

}  // namespace

ConvPlans direct_plans(const PlanRequest& request, std::size_t most) {
  ConvPlans plans;
  for (DirectWay& way : ways_of(request))
    if (plans.size() < most) plans.push_back(std::make_unique<DirectPlan>(std::move(way)));
  return plans;
}

std::unique_ptr<ConvPlan> direct_plan(const PlanRequest& request, const std::string& name) {
  for (DirectWay& way : ways_of(request))
    if (way.name == name) return std::make_unique<DirectPlan>(std::move(way));
  return nullptr;
}

}  // namespace lockstep
