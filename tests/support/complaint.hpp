// complaint: what an act is refused with.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "base/error.hpp"

namespace lockstep {

/// The message, which must be one line; "no error" where there is none.
std::string complaint(const auto& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "no error";
}

}  // namespace lockstep
