// coverage: g++ -fsanitize-coverage=trace-pc calls __sanitizer_cov_trace_pc at each basic block of the readers; this file is compiled without it.
#include "fuzz/coverage.hpp"

#include <array>
#include <bit>
#include <cstdint>

namespace lockstep::fuzz {
namespace {

constexpr std::size_t places = 1 << 16;
std::array<std::uint8_t, places> counts, seen;
std::uintptr_t before = 0;
std::size_t reached_places = 0;

}  // namespace

void forget_coverage() { counts.fill(0), before = 0; }

bool add_coverage() {
  bool is_new = false;
  for (std::size_t i = 0; i < places; ++i) {
    if (counts[i] == 0) continue;
    const auto magnitude = static_cast<std::uint8_t>(1 << (std::bit_width(counts[i]) - 1));   // 1, 2-3, 4-7, ...
    if (seen[i] & magnitude) continue;
    if (seen[i] == 0) ++reached_places;
    seen[i] |= magnitude, is_new = true;
  }
  return is_new;
}

std::size_t reached() { return reached_places; }

}  // namespace lockstep::fuzz

extern "C" void __sanitizer_cov_trace_pc() {
  using namespace lockstep::fuzz;
  // Relative to this function, so that runs at other addresses give the same.
  const std::uintptr_t here = (reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)) - reinterpret_cast<std::uintptr_t>(&__sanitizer_cov_trace_pc)) * 0x9e3779b97f4a7c15u >> 40;
  std::uint8_t& count = counts[(here ^ before) % places];
  count = static_cast<std::uint8_t>(count + (count < 255));
  before = here >> 1;
}
