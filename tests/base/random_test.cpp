#include "base/random.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace lockstep {
namespace {

struct KnownAnswer {
  std::uint32_t counter[4], key[2], answer[4];
};
// Random123's kat_vectors, philox4x32 with 10 rounds.
const KnownAnswer known_answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(Random, BitsArePhiloxsKnownAnswers) {
  for (const KnownAnswer& known : known_answers) {
    // The counter's second word is the purpose (8 bits) and the upper part of `minor` (24 bits).
    const auto purpose = static_cast<Purpose>(known.counter[1] >> 24);
    const std::uint64_t minor = (std::uint64_t{known.counter[1] & 0xffffff} << 32) | known.counter[0];
    const Bits4 got = random_bits((std::uint64_t{known.key[1]} << 32) | known.key[0], purpose, known.counter[2], minor, known.counter[3]);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got[i], known.answer[i]);
  }
}

TEST(Random, EachPartOfWhatANumberIsForChangesIt) {
  std::set<std::uint32_t> first;
  first.insert(random_bits(1, Purpose::weights, 2, 3, 4)[0]);
  first.insert(random_bits(1 + (std::uint64_t{1} << 40), Purpose::weights, 2, 3, 4)[0]);
  first.insert(random_bits(1, Purpose::dropout, 2, 3, 4)[0]);
  first.insert(random_bits(1, Purpose::weights, 3, 3, 4)[0]);
  first.insert(random_bits(1, Purpose::weights, 2, 3 + (std::uint64_t{1} << 40), 4)[0]);
  first.insert(random_bits(1, Purpose::weights, 2, 3, 5)[0]);
  EXPECT_EQ(first.size(), 6u);
}

TEST(Random, UniformsFillZeroToOneWithoutOne) {
  EXPECT_EQ(uniform_of(0), 0.f);
  EXPECT_LT(uniform_of(0xffffffff), 1.f);
  std::vector<int> bins(64);
  const int draws = 1 << 18;
  for (int i = 0; i < draws; ++i)
    for (int k = 0; k < 4; ++k) bins[static_cast<std::size_t>(64 * uniform4(3, Purpose::augment, 0, static_cast<std::uint64_t>(i))[k])] += 1;
  double chi2 = 0;
  const double expected = draws / 16.0;
  for (const int count : bins) chi2 += (count - expected) * (count - expected) / expected;
  EXPECT_LT(chi2, 120);   // 63 degrees of freedom: mean 63, standard deviation 11.2; five of these
  EXPECT_GT(chi2, 7);
}

TEST(Random, BelowIsInRangeAndReachesBothEnds) {
  for (const std::uint64_t n : {std::uint64_t{1}, std::uint64_t{10}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    EXPECT_EQ(below(n, 0, 0), 0u);
    EXPECT_EQ(below(n, ~0u, ~0u), n - 1);
  }
}

TEST(Random, NormalsHaveTheMomentsOfANormal) {
  const int draws = 1 << 20;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < draws; ++i) {
    const double x = normal(5, Purpose::weights, 1, static_cast<std::uint64_t>(i));
    sum += x, squares += x * x, fourth += x * x * x * x;
  }
  // Five standard errors: 1, sqrt(2) and sqrt(96) over the root of the draws.
  EXPECT_NEAR(sum / draws, 0, 5 / 1024.0);
  EXPECT_NEAR(squares / draws, 1, 5 * 1.42 / 1024);
  EXPECT_NEAR(fourth / draws, 3, 5 * 9.8 / 1024);
}

}  // namespace
}  // namespace lockstep
