// random: numbers that are a pure function of what they are for.  Nobody holds a generator; threads, ranks and resumes change nothing.
// Philox 4x32-10 (Salmon et al. 2011) by Random123.  Host and device.
#pragma once
#include <Random123/philox.h>

#include <cmath>
#include <cstdint>

#include "base/dtype.hpp"

namespace lockstep {

/// What a number is for; values are written into runs' results, so they are never renumbered.
enum class Purpose : std::uint32_t { weights = 1, permutation = 2, augment = 3, dropout = 4, convert_order = 5, convert_split = 6, shapes = 7, bench = 8 };

struct Bits4 {
  std::uint32_t v[4];
  LOCKSTEP_FUNCTION std::uint32_t operator[](int i) const { return v[i]; }
};
struct Uniform4 {
  float v[4];
  LOCKSTEP_FUNCTION float operator[](int i) const { return v[i]; }
};

/// 128 random bits for (seed, purpose, major, minor, extra).  major: epoch, step or parameter, < 2^32; minor: sample or element, < 2^56.
LOCKSTEP_FUNCTION Bits4 random_bits(std::uint64_t seed, Purpose purpose, std::uint64_t major, std::uint64_t minor, std::uint32_t extra = 0) {
  const r123::Philox4x32::ctr_type counter = {{static_cast<std::uint32_t>(minor),
                                               static_cast<std::uint32_t>(minor >> 32) | (static_cast<std::uint32_t>(purpose) << 24),
                                               static_cast<std::uint32_t>(major), extra}};
  const r123::Philox4x32::key_type key = {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}};
  const auto out = r123::Philox4x32()(counter, key);
  return {{out.v[0], out.v[1], out.v[2], out.v[3]}};
}

/// [0, 1) with 24 bits, so that every value is exact in float.
LOCKSTEP_FUNCTION float uniform_of(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 5.9604644775390625e-8f; }

/// Four floats in [0, 1).
LOCKSTEP_FUNCTION Uniform4 uniform4(std::uint64_t seed, Purpose purpose, std::uint64_t major, std::uint64_t minor, std::uint32_t extra = 0) {
  const Bits4 bits = random_bits(seed, purpose, major, minor, extra);
  return {{uniform_of(bits[0]), uniform_of(bits[1]), uniform_of(bits[2]), uniform_of(bits[3])}};
}

/// An integer in [0, n), unbiased to 2^-32 (Lemire 2019, without the rejection).
LOCKSTEP_FUNCTION std::uint64_t below(std::uint64_t n, std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32) | low;
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits) * n) >> 64);
}

/// A standard normal number by Box and Muller, in double on the host.
inline double normal(std::uint64_t seed, Purpose purpose, std::uint64_t major, std::uint64_t minor) {
  const Bits4 bits = random_bits(seed, purpose, major, minor);
  const double u = (static_cast<double>(bits[0]) + 0.5) * 0x1p-32, v = static_cast<double>(bits[1]) * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * 3.14159265358979323846 * v);
}

}  // namespace lockstep
