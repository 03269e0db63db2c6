// preemption: the scheduler's wish that this run stops soon.
// SIGTERM and SIGUSR1 only set flags; the trainer asks for them at step boundaries and the ranks agree on it.
#pragma once
#include <atomic>

namespace lockstep {

/// Catches SIGTERM and SIGUSR1 from now to the end of the process: Slurm sends them again and again, also to a rank that is leaving.
void catch_stop_signals();

/// 0, or the signal that came last.
int stop_requested();

/// Whether SIGTERM has come: the launcher may be ending the ranks that a dead one has left behind.
const std::atomic<bool>& has_been_terminated();

/// Where no watchdog watches, while MPI starts and ends, a SIGTERM from now on ends this process after 5 seconds with that code, if it has not ended
/// by itself: a launcher that ends the ranks of a dead one would wait for half a minute before it kills them (Slurm's KillWait).
void end_soon_after_sigterm(int code);
/// A watchdog watches: not any more.
void stay_after_sigterm();

}  // namespace lockstep
