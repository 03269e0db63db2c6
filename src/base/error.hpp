// error: how lockstep says that something is wrong, and the exit codes that job scripts read.
// An error is thrown where the fact is known and printed once, by main.
#pragma once
#include <algorithm>
#include <cctype>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum ExitCode : int {
  exit_done = 0,
  exit_internal = 1,        // a fault of lockstep's own, or of a library under it
  exit_bad_input = 2,       // the user can mend it: configuration, data, environment
  exit_diverged = 3,        // non-finite loss or gradients; a requeue would not help
  exit_stopped_early = 75,  // saved and stopped by a signal: submit again (EX_TEMPFAIL)
};

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = exit_bad_input) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Writes its arguments one after another, as operator<< does, in any locale alike.
template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return out.str();
}

/// Without characters that would begin another line or steer a terminal: messages quote what stands in files and arguments.
inline std::string on_one_line(std::string text) {
  for (char& c : text)
    if (const auto byte = static_cast<unsigned char>(c); byte < 0x20 || byte == 0x7f) c = c == '\n' || c == '\r' || c == '\t' ? ' ' : '?';
  return text;
}

/// "1 rank", "4 ranks".
inline std::string counted(long long count, const char* thing) { return text_of(count, " ", thing, count == 1 ? "" : "s"); }

/// Throws an Error of bad input.  The message names the thing, what it is, what it must be and what to do, on one line whatever its parts hold.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(on_one_line(text_of(parts...)));
}

template <class... Parts>
[[noreturn]] void fail_with(ExitCode code, const Parts&... parts) {
  throw Error(on_one_line(text_of(parts...)), code);
}

template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) fail(parts...);
}

/// Keystrokes between two names: insertions, deletions, replacements and swaps of neighbours; case does not count.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  const auto equal = [&](std::size_t i, std::size_t j) {
    return std::tolower(static_cast<unsigned char>(a[i])) == std::tolower(static_cast<unsigned char>(b[j]));
  };
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) { cost[i][j] = i + j; continue; }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (equal(i - 1, j - 1) ? 0 : 1)});
      if (i > 1 && j > 1 && equal(i - 1, j - 2) && equal(i - 2, j - 1)) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  return cost[a.size()][b.size()];
}

/// The legal name nearest to what was typed; empty when none is near enough to be meant.
inline std::string nearest(std::string_view typed, const std::vector<std::string>& names) {
  std::string best;
  std::size_t least = std::max<std::size_t>(1, typed.size() / 3) + 1;
  for (const std::string& name : names)
    if (typed.size() < 200)
      if (const std::size_t distance = edit_distance(typed, name); distance < least) least = distance, best = name;
  return best;
}

/// ` Did you mean "NAME"?`, or nothing when no name is near.
inline std::string did_you_mean(std::string_view typed, const std::vector<std::string>& names) {
  const std::string name = nearest(typed, names);
  return name.empty() ? "" : " Did you mean \"" + name + "\"?";
}

}  // namespace lockstep
