// early_launch: kernels that are set up while the one before them in the stream still runs (programmatic dependent launch, sm_90).
// For files that nvcc compiles.  A step of a small net is a chain of kernels of 3 to 5 us each, of which this saves 0.7 (H200).
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <nv/target>

#include "tensor/cuda_check.hpp"
#include "tensor/device.hpp"

namespace lockstep {

/// First in a kernel that launch_early starts, before it reads or writes global memory: waits until the kernel ahead is done, and lets the one
/// behind be set up.
__device__ inline void take_turn_in_stream() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("griddepcontrol.wait;" ::: "memory"); asm volatile("griddepcontrol.launch_dependents;");))
}

/// Whether a kernel was compiled with take_turn_in_stream's instructions.
inline bool may_launch_early(const void* kernel) {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
}

inline cudaLaunchAttribute early_attribute() {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization, early.val.programmaticStreamSerializationAllowed = 1;
  return early;
}

/// kernel(arguments...) on the device's current stream.
template <class... Arguments>
void launch_early(const Device& device, void (*kernel)(Arguments...), dim3 blocks, dim3 threads, const std::type_identity_t<Arguments>&... arguments) {
  static thread_local const void* last = nullptr;
  static thread_local bool is_early = false;
  if (const void* address = reinterpret_cast<const void*>(kernel); address != last) last = address, is_early = may_launch_early(address);
  cudaLaunchAttribute early = early_attribute();
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = threads, config.stream = static_cast<cudaStream_t>(device.native_stream(device.current()));
  config.attrs = &early, config.numAttrs = is_early ? 1 : 0;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (status != cudaSuccess) fail_on_gpu(text_of("CUDA: a kernel's launch: ", cudaGetErrorString(status)));
}

}  // namespace lockstep
