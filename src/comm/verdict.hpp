// verdict: whether a job has come to a halt, and which ranks are to blame.
// In: what one rank knows of all.  Out: nothing, or the ranks to name and why.  Pure: no clock, no MPI.
// The job halts for one of two reasons.  A rank is silent: its messages stopped (killed, stopped, its host lost).  Or a rank is behind:
// alive, but the ranks that wait have begun more collective calls than it has, or done more steps, and it makes no progress.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/watchdog.hpp"

namespace lockstep {

/// What a rank says about itself.  Plain bytes: it is sent as it is.
struct Beat {
  std::int64_t number = 0;                                  // the larger is the newer
  std::int64_t calls = 0, step = 0;
  double idle_seconds = 0;                                  // since its last progress
  Phase phase = Phase::starting;
  std::int32_t is_leaving = 0;                              // it waits in ~Watchdog
};

/// A rank as another one sees it.
struct Sight {
  Beat beat;
  double silent_seconds = 0;                                // since the last news of it came in
};

struct Limits {
  double stall_seconds = 0, start_seconds = 0;
  double news_seconds = 0;                                  // the longest that news is under way
  bool is_ending = false;                                   // SIGTERM has come: a silent rank is waited for no longer than news may take
};

struct Verdict {
  std::vector<int> ranks;                                   // to blame, in order
  bool is_silent = false;
  bool is_tie = false;                                      // no rank is behind the others
  bool operator==(const Verdict&) const = default;
};

/// As rank `me` sees it; its own silent_seconds is 0.
std::optional<Verdict> judge(int me, std::span<const Sight> ranks, const Limits& limits);

/// A sentence for the user: ranks, hosts, step, phase, seconds, and what to look at.
std::string describe(const Verdict& verdict, std::span<const Sight> ranks, std::span<const std::string> hosts);

/// 0 for the rank that should report, 1 for the one that should if that one does not, and so on: the blamed come last.
int turn_to_report(const Verdict& verdict, int me, int size);

}  // namespace lockstep
