// Two 16-bit numbers at once give what each gives alone.
#include "layers/pairs.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace lockstep::test {
namespace {

template <class T>
class Pairs : public testing::Test {};
using Types = testing::Types<f16, bf16>;
TYPED_TEST_SUITE(Pairs, Types);

TYPED_TEST(Pairs, ComputeAsTheirHalvesDo) {
  using T = TypeParam;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> numbers{0.f, -0.f, 1.f, -1.f, 0.5f, 3.25f, -60000.f, 1e-6f, infinity, -infinity, nan};
  const auto half = [](std::uint32_t bits) {
    T r;
    r.bits = static_cast<std::uint16_t>(bits);
    return static_cast<float>(r);
  };
  const auto is = [](float a, float b) { return a == b || (a != a && b != b); };
  for (const float a : numbers)
    for (const float b : numbers) {
      const float x = T(a), y = T(b);
      const std::uint32_t pair = pair_of(T(a), T(b)), swapped = pair_of(T(b), T(a));
      EXPECT_TRUE(is(half(pair), x) && is(half(pair >> 16), y));
      const float largest = x != x || y != y ? nan : x > y ? x : y;
      EXPECT_TRUE(is(half(pair_largest<T>(pair, swapped)), largest) && is(half(pair_largest<T>(pair, swapped) >> 16), largest)) << a << " " << b;
      EXPECT_EQ(pair_equal<T>(pair, swapped), x < y || x > y ? 0u : 0xffffffffu) << a << " " << b;
      EXPECT_EQ(pair_is_nan<T>(pair), (x != x ? 0xffffu : 0u) | (y != y ? 0xffff0000u : 0u));
      for (const float sign : {-1.f, 0.f, 1.f}) {
        const std::uint32_t product = pair_times_sign<T>(pair, pair_of(T(sign), T(-sign)));
        EXPECT_TRUE(is(half(product), x * sign) && is(half(product >> 16), y * -sign)) << a << " " << b << " " << sign;
      }
      EXPECT_EQ(select_halves(0xffffu, pair, swapped), pair_of(T(a), T(a)));
    }
}

}  // namespace
}  // namespace lockstep::test
