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
  double cost = 0;                       // guessed clock cycles, to compare ways with
  /// stream: a cudaStream_t.  tickets: `most_tickets` words of device memory that are zero, and zero again afterwards.
  std::function<void(void* stream, const PlanOperands&, unsigned* tickets)> start;
};
inline constexpr int most_tickets = 4;

/// forward and grad_input.
std::vector<DirectWay> direct_spatial_ways(const PlanRequest& request, const GpuLimits& limits);
std::vector<DirectWay> direct_grad_weight_ways(const PlanRequest& request, const GpuLimits& limits);

}  // namespace lockstep
