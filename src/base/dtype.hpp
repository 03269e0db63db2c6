// dtype: the element types of tensors.  f16 and bf16 are our own 16-bit storage types: Kokkos' are 4 bytes wide in a host build.
// Arithmetic is done in float; these only store.  Host and device.  Here #if is allowed (tests/system/layering_test.py): a GPU converts in one
// instruction what takes ten in C++, and kernels that stream 16-bit arrays were held up by it (3 times as long on an H200).
#pragma once
#include <Random123/features/compilerfeatures.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

// Random123's spelling of "host and device" lets plain headers be used in kernels without a platform #if of ours.
#define LOCKSTEP_FUNCTION R123_CUDA_DEVICE inline

namespace lockstep {

enum class DType { f32, f16, bf16, u8, i32 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32: case DType::i32: return 4;
    case DType::f16: case DType::bf16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}
constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::u8: return "u8";
    case DType::i32: return "i32";
  }
  return "?";
}

namespace detail {
LOCKSTEP_FUNCTION std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
LOCKSTEP_FUNCTION float float_of(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

#ifdef __CUDA_ARCH__
LOCKSTEP_FUNCTION std::uint16_t f16_bits(float value) {
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
LOCKSTEP_FUNCTION float f16_value(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
LOCKSTEP_FUNCTION std::uint16_t bf16_bits(float value) {
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#else
LOCKSTEP_FUNCTION std::uint16_t f16_bits(float value) {
  const std::uint32_t wide = bits_of(value), sign = (wide >> 16) & 0x8000u, magnitude = wide & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);               // NaN
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);              // rounds beyond 65504
  if (magnitude >= 0x38800000u) {                                                                // normal
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  const float scaled = float_of(magnitude) + 0.5f;                                       // subnormal: the float unit rounds; 0.5's last bit is 2^-24
  return static_cast<std::uint16_t>(sign | (bits_of(scaled) - 0x3f000000u));
}
LOCKSTEP_FUNCTION float f16_value(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
  if (exponent == 31) return float_of(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) return (sign ? -1.f : 1.f) * static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
  return float_of(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}
LOCKSTEP_FUNCTION std::uint16_t bf16_bits(float value) {
  const std::uint32_t wide = bits_of(value);
  return (wide & 0x7fffffffu) > 0x7f800000u ? static_cast<std::uint16_t>((wide >> 16) | 0x40u)
                                            : static_cast<std::uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
}
#endif
}  // namespace detail

/// IEEE binary16, rounded to nearest even; overflow becomes infinity, NaN stays NaN.
struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  LOCKSTEP_FUNCTION explicit f16(float value) : bits(detail::f16_bits(value)) {}
  LOCKSTEP_FUNCTION operator float() const { return detail::f16_value(bits); }
};

/// bfloat16: the upper half of a float, rounded to nearest even; NaN stays NaN.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  LOCKSTEP_FUNCTION explicit bf16(float value) : bits(detail::bf16_bits(value)) {}
  LOCKSTEP_FUNCTION operator float() const { return detail::float_of(static_cast<std::uint32_t>(bits) << 16); }
};

}  // namespace lockstep
