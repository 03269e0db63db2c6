// standing: which class a network says, the same in kernels and on the host.
#pragma once
#include <cstdint>

namespace lockstep {

/// Whether class a stands before class b: the larger logit, a NaN above all (as PyTorch sorts), then the lower class.
constexpr bool stands_before(float za, std::int64_t a, float zb, std::int64_t b) {
  const bool a_is_nan = za != za, b_is_nan = zb != zb;
  if (a_is_nan || b_is_nan) return a_is_nan && (!b_is_nan || a < b);
  return za > zb || (za == zb && a < b);
}

}  // namespace lockstep
