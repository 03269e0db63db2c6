// pairs: two 16-bit numbers in a register, computed with at once: a GPU needs half the instructions that it needs for two floats.  For f16 and bf16; numbers keep
// their type, so products with -1, 0 and 1, maxima and comparisons are exact.
#pragma once
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/dtype.hpp"

namespace lockstep {

template <class T>
using Pair = std::conditional_t<std::is_same_v<T, f16>, __half2, __nv_bfloat162>;

template <class T>
__device__ inline Pair<T> pair_of(std::uint32_t bits) {
  Pair<T> r;
  memcpy(&r, &bits, sizeof r);
  return r;
}
template <class T>
__device__ inline Pair<T> pair_of(T low, T high) { return pair_of<T>(low.bits | static_cast<std::uint32_t>(high.bits) << 16); }
template <class T>
__device__ inline Pair<T> pair_of(T both) { return pair_of(both, both); }

/// Each half of a where the mask is 0xffff, of b where it is 0.
__device__ inline std::uint32_t select_halves(std::uint32_t mask, std::uint32_t a, std::uint32_t b) { return (a & mask) | (b & ~mask); }

}  // namespace lockstep
#endif
