// direct_kernels: between direct_plan and its kernels: ways to launch them.  For src/backends/direct_*_cuda.cpp alone.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backends/conv_plan.hpp"

namespace lockstep {

/// What the current GPU offers.
struct GpuLimits {
  int multiprocessors = 0;
  std::size_t block_memory = 0, multiprocessor_memory = 0;   // shared memory, bytes
};

/// One way to compute a request, on any stream.
struct DirectWay {
  std::string name;
  std::size_t workspace_bytes = 0;
  int sum_parts = 1;                     // that forward with sums leaves
  double cost = 0;                       // guessed clock cycles, to compare ways with
  std::function<void(void* stream, const PlanOperands&)> start;   // stream: a cudaStream_t
};
inline constexpr int most_sum_parts = 1024;   // whoever adds them reads them all

inline int divided_up(int a, int b) { return (a + b - 1) / b; }

/// 3x3: forward and grad_input; grad_weight.
std::vector<DirectWay> direct_spatial_ways(const PlanRequest& request, const GpuLimits& limits);
std::vector<DirectWay> direct_grad_weight_ways(const PlanRequest& request, const GpuLimits& limits);
/// First layers, of larger windows: forward; grad_weight.
std::vector<DirectWay> direct_stem_ways(const PlanRequest& request, const GpuLimits& limits);
std::vector<DirectWay> direct_stem_grad_weight_ways(const PlanRequest& request, const GpuLimits& limits);

}  // namespace lockstep
