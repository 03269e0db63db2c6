// pairs: two 16-bit numbers in a register, computed with at once: a GPU needs half the instructions that it needs for two floats.  For f16 and bf16.  What is
// computed here is exact: products with -1, 0 and 1, maxima, comparisons.
#pragma once
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/dtype.hpp"

namespace lockstep {

/// The first number in the lower half.
template <class T>
LOCKSTEP_FUNCTION std::uint32_t pair_of(T low, T high) {
  return low.bits | static_cast<std::uint32_t>(high.bits) << 16;
}

#ifdef __CUDA_ARCH__
template <class T>
__device__ auto native_pair(std::uint32_t bits) {
  std::conditional_t<std::is_same_v<T, f16>, __half2, __nv_bfloat162> r;
  memcpy(&r, &bits, sizeof r);
  return r;
}
template <class Native>
__device__ std::uint32_t bits_of_pair(const Native& pair) {
  std::uint32_t r;
  memcpy(&r, &pair, sizeof r);
  return r;
}
#else
/// of(a's, b's) of the lower halves and of the upper ones.
template <class T, class Of>
std::uint32_t each_half(std::uint32_t a, std::uint32_t b, const Of& of) {
  const auto half = [](std::uint32_t bits) {
    T r;
    r.bits = static_cast<std::uint16_t>(bits);
    return static_cast<float>(r);
  };
  return static_cast<std::uint32_t>(of(half(a), half(b))) | static_cast<std::uint32_t>(of(half(a >> 16), half(b >> 16))) << 16;
}
#endif

/// a * sign; sign: -1, 0 or 1 in each half.
template <class T>
LOCKSTEP_FUNCTION std::uint32_t pair_times_sign(std::uint32_t a, std::uint32_t sign) {
#ifdef __CUDA_ARCH__
  return bits_of_pair(__hmul2(native_pair<T>(a), native_pair<T>(sign)));
#else
  return each_half<T>(a, sign, [](float x, float s) { return T(x * s).bits; });
#endif
}
/// The larger; a NaN wins.
template <class T>
LOCKSTEP_FUNCTION std::uint32_t pair_largest(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  return bits_of_pair(__hmax2_nan(native_pair<T>(a), native_pair<T>(b)));
#else
  return each_half<T>(a, b, [](float x, float y) { return T(x != x || x > y ? x : y).bits; });
#endif
}
/// 0xffff in each half whose numbers are equal, or one of them NaN.
template <class T>
LOCKSTEP_FUNCTION std::uint32_t pair_equal(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  return __hequ2_mask(native_pair<T>(a), native_pair<T>(b));
#else
  return each_half<T>(a, b, [](float x, float y) { return x < y || x > y ? 0u : 0xffffu; });
#endif
}
/// 0xffff in each half that is NaN.
template <class T>
LOCKSTEP_FUNCTION std::uint32_t pair_is_nan(std::uint32_t a) {
#ifdef __CUDA_ARCH__
  return __hneu2_mask(native_pair<T>(a), native_pair<T>(a));
#else
  return each_half<T>(a, a, [](float x, float) { return x != x ? 0xffffu : 0u; });
#endif
}

/// Each half of a where the mask is 0xffff, of b where it is 0.
LOCKSTEP_FUNCTION std::uint32_t select_halves(std::uint32_t mask, std::uint32_t a, std::uint32_t b) { return (a & mask) | (b & ~mask); }

}  // namespace lockstep
