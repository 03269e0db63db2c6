// cuda_check: CUDA's status codes as exceptions.
#pragma once
#include <cuda_runtime.h>

#include <source_location>

#include "base/error.hpp"

namespace lockstep {

/// Throws with the call site and CUDA's own words.
inline void check_cuda(cudaError_t status, std::source_location site = std::source_location::current()) {
  if (status != cudaSuccess) fail_with(exit_internal, "CUDA: ", cudaGetErrorString(status), " at ", site.file_name(), ":", site.line());
}

}  // namespace lockstep
