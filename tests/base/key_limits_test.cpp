// Every key at the limits of its type: what does not fit is refused with the key's name and what it may hold, and nothing wraps round.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <regex>
#include <sstream>

#include "base/config.hpp"

namespace lockstep {
namespace {

struct Key {
  std::string name, legal;                                  // "an integer from 1 to 4096"
  bool is_list = false, is_integer = false, is_number = false, is_text = false, is_switch = false;
  double low = 0, high = 0;
};

/// The keys as `lockstep keys` tells them to a user.
std::vector<Key> keys() {
  static const std::regex line(R"((\S+) = .*  \((.*)\))"), range(R"((an integer|a number|a list of integers, each|a list of numbers, each) from (\S+) to (\S+))");
  std::vector<Key> found;
  std::istringstream lines(describe_keys());
  for (std::string text; std::getline(lines, text);) {
    std::smatch parts, limits;
    if (text.empty()) continue;
    if (!std::regex_match(text, parts, line)) { ADD_FAILURE() << text; continue; }
    Key key{.name = parts[1], .legal = parts[2]};
    if (std::regex_match(key.legal, limits, range)) {
      key.is_number = true, key.is_list = limits[1].str().starts_with("a list"), key.is_integer = limits[1].str().find("integer") != std::string::npos;
      key.low = std::stod(limits[2]), key.high = std::stod(limits[3]);
    }
    key.is_switch = key.legal == "true or false", key.is_text = !key.is_number && !key.is_switch;
    found.push_back(key);
  }
  return found;
}

/// A value, and what it is as a number; none: it is no number that a computer has.
struct Value {
  std::string text;
  std::optional<long double> number;
  bool is_whole = true;
};
const Value values[] = {{"0", 0}, {"-1", -1}, {"1", 1}, {"2147483647", 2147483647.L}, {"2147483648", 2147483648.L}, {"-2147483649", -2147483649.L}, {"4294967296", 4294967296.L},
                        {"9223372036854775807", 9223372036854775807.L}, {"-9223372036854775808", -9223372036854775808.L}, {"9223372036854775808", {}}, {"18446744073709551616", {}},
                        {"0.5", 0.5L, false}, {"-0.5", -0.5L, false}, {"1e3", 1000, false}, {"1e-320", 1e-320L, false}, {"1e400", {}, false}, {"-1e400", {}, false}, {"nan", {}, false}, {"inf", {}, false},
                        {"-inf", {}, false}, {"", {}, false}, {"\"\"", {}, false}, {"two", {}, false}, {"\"1\"", {}, false}, {"true", {}, false}, {"{a = 1}", {}, false}, {"1979-05-27", {}, false}};

/// What is said when the key is set so; empty when it is accepted.
std::string refusal(const std::string& name, const std::string& value) {
  const std::string override = name + "=" + value;
  try {
    const Config config = read_config("", std::span(&override, 1));
    const Config again = parse_config(to_toml(config), "again");
    EXPECT_TRUE(differences(config, again).empty()) << override;
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), exit_bad_input) << override;
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << override;
    return error.what();
  }
}

TEST(KeyLimits, EveryNumberHasBothSoThatNothingOverflows) {
  int numbers = 0;
  for (const Key& key : keys())
    if (key.legal.find("integer") != std::string::npos || key.legal.find("number") != std::string::npos) {
      EXPECT_TRUE(key.is_number) << key.name << ": " << key.legal;
      EXPECT_LT(key.low, key.high) << key.name;
      numbers += key.is_number;
    }
  EXPECT_GT(numbers, 50);
}

TEST(KeyLimits, WhatANumberCannotHoldIsRefusedWithTheKeyAndItsRange) {
  for (const Key& key : keys()) {
    if (!key.is_number) continue;
    for (const Value& value : values) {
      const std::string written = key.is_list ? "[" + (value.text.empty() ? "\"\"" : value.text) + "]" : value.text, said = refusal(key.name, written);
      const bool fits = value.number && (!key.is_integer || value.is_whole) && *value.number >= key.low && *value.number <= key.high;
      if (fits) {                                           // what keys say to each other may still refuse it, in words of its own
        EXPECT_EQ(said.find(key.legal), std::string::npos) << key.name << " = " << written << ": " << said;
      } else {
        EXPECT_NE(said.find(key.name), std::string::npos) << key.name << " = " << written << ": " << said;
        EXPECT_NE(said.find(key.legal), std::string::npos) << key.name << " = " << written << ": " << said;
      }
    }
    for (const std::string wrong : {key.is_list ? "1" : "[1]", key.is_list ? "[[1]]" : "[]"}) EXPECT_NE(refusal(key.name, wrong).find(key.legal), std::string::npos) << key.name << " = " << wrong;
  }
}

TEST(KeyLimits, ASwitchIsTrueOrFalseAndAWordOneOfItsWords) {
  for (const Key& key : keys()) {
    const bool is_word = key.is_text && key.legal.starts_with("\"");
    if (!key.is_switch && !is_word) continue;
    for (const Value& value : values) {
      if (key.is_switch && value.text == "true") continue;
      const std::string said = refusal(key.name, value.text);
      EXPECT_NE(said.find(key.name), std::string::npos) << key.name << " = " << value.text << ": " << said;
      EXPECT_NE(said.find(key.legal), std::string::npos) << key.name << " = " << value.text << ": " << said;
    }
  }
}

}  // namespace
}  // namespace lockstep
