// progress: how far, how fast, how long still.  On a terminal one line that changes; in a log a line every ten seconds.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep {

/// "1.9 GB": decimal, as disks are sold.
std::string size_text(std::int64_t bytes);

class ProgressLine {
 public:
  ProgressLine(std::string what, std::int64_t total);
  ~ProgressLine();                                                      // ends the terminal's line
  void advance();                                                   // one more of total is done

 private:
  using Clock = std::chrono::steady_clock;
  void print(Clock::time_point now);
  std::string what_;
  std::int64_t total_, done_ = 0;
  bool is_terminal_;
  Clock::time_point start_, next_;
};

}  // namespace lockstep
