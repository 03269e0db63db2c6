// direct_launch: how a kernel of a direct convolution starts, chosen from a table and with shared memory of its own size.  For files that nvcc compiles.
#pragma once
#include <cstddef>

#include "tensor/early_launch.hpp"

namespace lockstep {

/// stream: a cudaStream_t.
/// is_early: may_launch_early(function).
template <class Arguments>
void start_kernel(const void* function, dim3 grid, dim3 block, std::size_t memory, void* stream, Arguments& arguments, bool is_early) {
  cudaLaunchAttribute early = early_attribute();
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = memory, config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early, config.numAttrs = is_early ? 1 : 0;
  void* pointers[] = {&arguments};
  const cudaError_t status = cudaLaunchKernelExC(&config, function, pointers);
  if (status != cudaSuccess) fail_on_gpu(text_of("CUDA: direct convolution: ", cudaGetErrorString(status)));
}

}  // namespace lockstep
