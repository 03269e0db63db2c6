// direct_splits: adds what many blocks have left, in one order.  For files that nvcc compiles.
#pragma once
#include <cstdint>

namespace lockstep {

inline constexpr int split_quads = 8;                        // groups of 4 neighbouring numbers that a block adds
inline int threads_for_splits(int splits) { return splits >= 32 ? 256 : (splits * split_quads + 31) / 32 * 32; }

/// Of partial [splits, quads, 4], the sum over splits of the block's quad `first` + thread % 8.  Valid in the first 8 threads of a block, which
/// has threads_for_splits: a warp's lanes take 8 quads of 4 splits at a time.
__device__ inline float4 add_splits(const float* partial, int splits, int quads, int first) {
  __shared__ float4 parts[8 * split_quads];
  const int thread = static_cast<int>(threadIdx.x), column = thread % split_quads, warps = static_cast<int>(blockDim.x) / 32;
  const auto add = [](float4& to, const float4& v) { to.x += v.x, to.y += v.y, to.z += v.z, to.w += v.w; };
  float4 sum{};
  #pragma unroll 8
  for (int i = thread / split_quads; i < splits; i += warps * (32 / split_quads))
    add(sum, reinterpret_cast<const float4*>(partial)[static_cast<std::int64_t>(i) * quads + first + column]);
  #pragma unroll
  for (int lanes = split_quads; lanes < 32; lanes *= 2)
    add(sum, {__shfl_xor_sync(~0u, sum.x, lanes), __shfl_xor_sync(~0u, sum.y, lanes), __shfl_xor_sync(~0u, sum.z, lanes), __shfl_xor_sync(~0u, sum.w, lanes)});
  if (thread % 32 < split_quads) parts[thread / 32 * split_quads + column] = sum;
  __syncthreads();
  #pragma unroll
  for (int i = 1; i < 8; ++i)
    if (i < warps) add(sum, parts[i * split_quads + column]);
  return sum;
}

}  // namespace lockstep
