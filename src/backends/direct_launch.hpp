// direct_launch: how a kernel of a direct convolution starts.  For files that nvcc compiles.
// A kernel that starts early is set up while the one before it in the stream still runs, and waits within (take_turn): a microsecond less.
#pragma once
#include <cstddef>

#include "base/error.hpp"

namespace lockstep {

/// Whether the kernel has been compiled with take_turn's instructions, which sm_90 brought.
inline bool may_start_early(const void* function) {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, function) == cudaSuccess && attributes.ptxVersion >= 90;
}

/// stream: a cudaStream_t.
template <class Arguments>
void start_kernel(const void* function, dim3 grid, dim3 block, std::size_t memory, void* stream, Arguments& arguments, bool is_early) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization, early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = memory, config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early, config.numAttrs = is_early ? 1 : 0;
  void* pointers[] = {&arguments};
  const cudaError_t status = cudaLaunchKernelExC(&config, function, pointers);
  if (status != cudaSuccess) fail_with(exit_internal, "CUDA: direct convolution: ", cudaGetErrorString(status));
}

}  // namespace lockstep
