// cuda_check: CUDA's status codes as exceptions, or as the end.
#pragma once
#include <cuda_runtime.h>

#include <source_location>
#include <string>

#include "base/error.hpp"

namespace lockstep {

/// What CUDA, or a library on it, answered.  Throws (internal); where the GPU is lost, the process ends in on_gpu_lost's function instead.
[[noreturn]] void fail_on_gpu(const std::string& message);

/// Fails with the call site and CUDA's own words.
inline void check_cuda(cudaError_t status, std::source_location site = std::source_location::current()) {
  if (status != cudaSuccess) fail_on_gpu(text_of("CUDA: ", cudaGetErrorString(status), " at ", site.file_name(), ":", site.line()));
}

}  // namespace lockstep
