#include "base/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.hpp"
#include "support/python.hpp"

namespace lockstep {
namespace {

/// Floats that a conversion to 16 bits may get wrong: every value of T, the middle to the next one, one bit either side of both, and random bits.
template <class T>
std::vector<float> awkward_floats() {
  std::vector<float> floats;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    T here, next;
    here.bits = static_cast<std::uint16_t>(bits), next.bits = static_cast<std::uint16_t>(bits + 1);
    const float value = here, middle = static_cast<float>((static_cast<double>(value) + static_cast<double>(static_cast<float>(next))) / 2);
    for (const float x : {value, middle})
      for (const float y : {x, std::nextafter(x, 1e38f), std::nextafter(x, -1e38f)}) floats.push_back(y);
  }
  for (std::uint64_t i = 0; i < 200000; ++i)
    for (int k = 0; k < 4; ++k) floats.push_back(detail::float_of(random_bits(7, Purpose::bench, 0, i)[k]));
  return floats;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) { return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}; }

TEST(Dtype, EveryF16PatternIsTheFloatThatNumpySays) {
  const ScratchFolder folder;
  std::vector<float> ours;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    f16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    ours.push_back(value);
  }
  write_file(folder / "floats", bytes_of(ours));
  EXPECT_EQ(run_python(R"(
import sys, numpy as np
ours = np.fromfile(sys.argv[1], np.float32)
theirs = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
nan = np.isnan(theirs)
assert nan.sum() == 2046 and np.isnan(ours[nan]).all()
print((ours[~nan].view(np.uint32) != theirs[~nan].view(np.uint32)).sum(), "differ")
)", {folder / "floats"}), "0 differ\n");
}

TEST(Dtype, FloatsRoundToF16AsNumpyRoundsThem) {
  const ScratchFolder folder;
  const std::vector<float> floats = awkward_floats<f16>();
  std::vector<std::uint16_t> ours;
  for (const float value : floats) ours.push_back(f16(value).bits);
  write_file(folder / "floats", bytes_of(floats)), write_file(folder / "halves", bytes_of(ours));
  EXPECT_EQ(run_python(R"(
import sys, numpy as np
np.seterr(all="ignore")
floats, ours = np.fromfile(sys.argv[1], np.float32), np.fromfile(sys.argv[2], np.uint16)
theirs = floats.astype(np.float16)
nan = np.isnan(floats)
assert len(ours) > 1000000 and np.isnan(ours.view(np.float16)[nan]).all()
print((ours[~nan] != theirs.view(np.uint16)[~nan]).sum(), "differ")
)", {folder / "floats", folder / "halves"}), "0 differ\n");
}

TEST(Dtype, FloatsRoundToTheNearestBf16TiesToEven) {
  int wrong = 0;
  for (const float value : awkward_floats<bf16>()) {
    const bf16 got(value);
    if (std::isnan(value)) {
      wrong += !std::isnan(static_cast<float>(got));
      continue;
    }
    // The two neighbours, as doubles: distances are exact.  Above the largest bf16 the next step would be 2^128.
    const auto as_double = [](std::uint32_t bits) { return (bits & 0x7fff) == 0x7f80 ? std::copysign(0x1p128, bits & 0x8000 ? -1. : 1.) : static_cast<double>(detail::float_of(bits << 16)); };
    const std::uint32_t toward_zero = detail::bits_of(value) >> 16, away = toward_zero + 1;
    const double x = std::isinf(value) ? std::copysign(0x1p128, value) : static_cast<double>(value);
    const double below = std::abs(x - as_double(toward_zero)), above = (toward_zero & 0x7fff) == 0x7f80 ? 1e300 : std::abs(x - as_double(away));
    const std::uint32_t want = below < above || (below == above && toward_zero % 2 == 0) ? toward_zero : away;
    wrong += got.bits != want;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Dtype, EveryValueSurvivesTheWayToFloatAndBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    f16 half;
    bf16 brain;
    half.bits = brain.bits = static_cast<std::uint16_t>(bits);
    ASSERT_TRUE(std::isnan(static_cast<float>(half)) || f16(static_cast<float>(half)).bits == bits) << bits;
    ASSERT_TRUE(std::isnan(static_cast<float>(brain)) || bf16(static_cast<float>(brain)).bits == bits) << bits;
  }
}

TEST(Dtype, SixteenBitTypesAreSixteenBitsWide) {
  EXPECT_EQ(sizeof(f16), size_of(DType::f16));
  EXPECT_EQ(sizeof(bf16), size_of(DType::bf16));
}

}  // namespace
}  // namespace lockstep
