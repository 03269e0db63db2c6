// recording: what makes a captured CUDA graph faster than the calls it was captured from.  For files that nvcc compiles.
#pragma once
#include <cuda_runtime.h>

namespace lockstep {

/// Puts a kernel that starts early in the place of each run of small memsets.  Libraries clear counters and sums before their kernels, and as a node of a
/// graph a memset takes 4 to 5 us: 144 of them were 0.7 of the 26.8 ms of a ResNet-50 step (batch 256, fp16, H200).
void join_memsets(cudaGraph_t graph);

}  // namespace lockstep
