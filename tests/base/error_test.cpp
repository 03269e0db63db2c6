#include "base/error.hpp"

#include <gtest/gtest.h>

#include <locale>

namespace lockstep {
namespace {

TEST(Error, EditDistanceCountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("ecpohs", "epochs"), 2u);
  EXPECT_EQ(edit_distance("Nesterov", "nesterov"), 0u);
}

TEST(Error, ANameIsSuggestedOnlyWhenItIsNear) {
  EXPECT_EQ(did_you_mean("warmup_epoch", {"kind", "warmup_epochs"}), " Did you mean \"warmup_epochs\"?");
  EXPECT_EQ(did_you_mean("lr", {"learning_rate", "kind"}), "");
  EXPECT_EQ(did_you_mean("x", {}), "");
}

TEST(Error, NumbersAreWrittenAlikeInEveryLocale) {
  struct Grouping : std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    char do_decimal_point() const override { return ','; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Grouping));
  const std::string text = text_of(1234567, " ", 0.5);
  std::locale::global(before);
  EXPECT_EQ(text, "1234567 0.5");
}

TEST(Error, AMessageIsOnePrintableLineWhateverItQuotes) {
  try {
    fail("a.h5: class \"", std::string("x\ny\r\tz\x1b[31m\x7f\0", 13), "\xc3\xa9\" is unknown");
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "a.h5: class \"x y  z?[31m??\xc3\xa9\" is unknown");
  }
}

TEST(Error, CarriesItsExitCode) {
  try {
    fail_with(exit_diverged, "step ", 3);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), exit_diverged);
    EXPECT_STREQ(error.what(), "step 3");
  }
  EXPECT_THROW(require(false, "no"), Error);
  EXPECT_NO_THROW(require(true, "no"));
}

}  // namespace
}  // namespace lockstep
