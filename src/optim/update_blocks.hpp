// update_blocks: the flat buffers as the optimizer's kernels walk over them, in blocks, and what is known of each block.
// In: the parameters' slices.  Out: an array each of flags and of gradients' places, for the device.
#pragma once
#include <cstdint>
#include <vector>

#include "base/config.hpp"
#include "base/dtype.hpp"
#include "tensor/pack.hpp"
#include "tensor/parameters.hpp"

namespace lockstep {
namespace optimizer_kernels {

// The flat buffer in blocks of 64 elements: a slice starts at a block, its last one is filled up with zeros (tensor/parameters).
constexpr std::int64_t block_size = 64;
enum BlockFlag : std::uint8_t {
  is_trained = 1,
  is_decayed = 2,
  is_copied = 4,                         // has a 16-bit compute copy
  is_rounded = 8,                        // its gradient is of the copy's type
};
// A block's other bits say which of the distinct rate factors is its slice's.
constexpr int group_shift = 4, most_groups = 16;

/// What a GPU's thread reads and writes at once.
template <class T>
using Four = Pack<T, 4>;

/// Where gradients lie: each block's begins a unit of 128 bytes.
struct GradientBlocks {
  const char* base;
  const std::int32_t* units;             // of each block
  /// Elements i to i + 3, T the compute type.
  template <class T>
  LOCKSTEP_FUNCTION Four<float> four(std::int64_t i, std::uint8_t flags) const {
    const char* const block = base + std::int64_t{units[i / block_size]} * 128;
    if (!(flags & is_rounded)) return reinterpret_cast<const Four<float>*>(block)[i % block_size / 4];
    const Four<T> rounded = reinterpret_cast<const Four<T>*>(block)[i % block_size / 4];
    Four<float> r;
    for (int k = 0; k < 4; ++k) r.of[k] = static_cast<float>(rounded.of[k]);
    return r;
  }
};

/// The distinct rate factors of the slices.
std::vector<double> rate_groups(const Parameters& parameters);
/// BlockFlags and group of each block.
std::vector<std::uint8_t> block_flags(const OptimizerConfig& config, const Parameters& parameters, const std::vector<double>& groups);
/// GradientBlocks::units.
std::vector<std::int32_t> gradient_units(const Parameters& parameters);

}  // namespace optimizer_kernels
}  // namespace lockstep
