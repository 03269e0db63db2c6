// name_patterns: which parameters a list of patterns means; * stands for any text, also none.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "tensor/parameters.hpp"

namespace lockstep {

inline bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') return matches(pattern.substr(1), name) || (!name.empty() && matches(pattern, name.substr(1)));
  return !name.empty() && pattern[0] == name[0] && matches(pattern.substr(1), name.substr(1));
}

inline bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches(pattern, name); });
}

/// Error, naming the key, for a pattern that means no parameter.
inline void require_matches(const char* key, const std::vector<std::string>& patterns, const Parameters& parameters) {
  const auto slices = parameters.slices();
  const auto last = std::ranges::max_element(slices, {}, [](const Slice& s) { return s.spec.ordinal; });
  for (const std::string& pattern : patterns)
    require(std::ranges::any_of(slices, [&](const Slice& s) { return matches(pattern, s.spec.name); }), key, ": pattern \"", pattern,
            "\" matches no parameter of this model. Its last one is called \"", last->spec.name, "\".");
}

}  // namespace lockstep
