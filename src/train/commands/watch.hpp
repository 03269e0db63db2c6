// watch: what a command does together with the other ranks, under a watchdog.
#pragma once
#include <optional>

#include "base/config.hpp"
#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"
#include "train/preemption.hpp"

namespace lockstep {

/// From here to the end of the scope.  Collective, at both ends.
class Watch {
 public:
  Progress progress;

  /// Rank 0's limits hold for all: whether the inputs are the same is looked at later.
  Watch(Communicator& comm, const RunConfig& run) : comm_(comm) {
    double limits[] = {run.stall_seconds, run.start_seconds};
    comm.broadcast(limits, sizeof limits, 0);
    comm.count_calls(&progress.calls);
    watchdog_.emplace(progress, limits[0], limits[1], &has_been_terminated());
    stay_after_sigterm();
  }
  ~Watch() {
    watchdog_.reset();
    comm_.count_calls(nullptr);
    if (code_ == exit_done || code_ == exit_stopped_early) end_soon_after_sigterm(comm_.rank() == 0 ? code_ : exit_done);   // all ranks have come here: that is the result
  }
  /// What the command returns, once all is saved.
  int leave_with(int code) { return code_ = code; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  Communicator& comm_;
  std::optional<Watchdog> watchdog_;
  int code_ = exit_internal;
};

}  // namespace lockstep
