#include "convert/progress.hpp"

#include <unistd.h>

#include <cstdio>

#include "base/error.hpp"
#include "base/formatted.hpp"

namespace lockstep {

std::string size_text(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value < 1e6) return formatted("%.0f kB", value / 1e3);
  if (value < 1e9) return formatted("%.1f MB", value / 1e6);
  return value < 1e12 ? formatted("%.1f GB", value / 1e9) : formatted("%.1f TB", value / 1e12);
}

namespace {
std::string duration_text(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  return whole < 3600 ? formatted("%ld:%02ld", whole / 60, whole % 60) : formatted("%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
}
}  // namespace

ProgressLine::ProgressLine(std::string what, std::int64_t total)
    : what_(std::move(what)), total_(total), is_terminal_(::isatty(STDOUT_FILENO) == 1), start_(Clock::now()), next_(start_) {
  next_ += is_terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10);
}

void ProgressLine::advance() {
  ++done_;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  print(now);
  next_ = now + (is_terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10));
}

ProgressLine::~ProgressLine() {
  print(Clock::now());
  if (is_terminal_) std::fputs("\n", stdout);
}

void ProgressLine::print(Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - start_).count(), rate = seconds > 0 ? static_cast<double>(done_) / seconds : 0;
  std::printf("%s%s: %lld of %lld images, %.0f images/s, %s %s%s", is_terminal_ ? "\r" : "", what_.c_str(), static_cast<long long>(done_),
              static_cast<long long>(total_), rate, done_ == total_ ? "in" : "left",
              done_ == total_ ? duration_text(seconds).c_str() : rate > 0 ? duration_text(static_cast<double>(total_ - done_) / rate).c_str() : "?",
              is_terminal_ ? "   " : "\n");
  std::fflush(stdout);
}

}  // namespace lockstep
