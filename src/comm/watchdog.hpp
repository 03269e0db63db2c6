// watchdog: notices a dead or late rank, says which and where, ends the job.
// A thread a rank: twice a second it sends the table of all ranks known so far to the rank 1, 2, 4, ... further on, in turn, on a
// communicator of its own.  So news reaches all n ranks within log2(n) messages, and a stopped rank does not hide those behind it.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace lockstep {

enum class Phase : std::int32_t { starting, warm_up, training, evaluation, checkpoint, finishing };
const char* name_of(Phase phase);

/// What a rank is doing; written by the trainer and by whoever makes progress, read by the watchdog.
struct Progress {
  std::atomic<std::int64_t> ticks{0};                     // raised by each step, pread and written block
  std::atomic<std::int64_t> step{0};
  std::atomic<Phase> phase{Phase::starting};
  std::atomic<std::int64_t> calls{0};                     // collective calls begun: Communicator::count_calls(&progress.calls)
  void tick() { ticks.fetch_add(1, std::memory_order_relaxed); }
};

class Watchdog {
 public:
  /// stall_seconds = 0: no thread.  start_seconds (0: no limit) holds instead while the phase is starting or warm_up; a rank that is
  /// stopped or lost is noticed after stall_seconds in any phase, and within seconds once *is_terminated (SIGTERM came: a launcher may be ending
  /// the ranks of a dead one, and waits for them).  Collective, with equal limits (makes a communicator of its own).
  Watchdog(const Progress& progress, double stall_seconds, double start_seconds, const std::atomic<bool>* is_terminated = nullptr);
  ~Watchdog();  // collective: watches on until all ranks are here.  While an exception unwinds this rank: just ends its thread
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
