// preemption: the scheduler's wish that this run stops soon.
// SIGTERM and SIGUSR1 only set a flag; the trainer asks for it at step boundaries and the ranks agree on it.
#pragma once

namespace lockstep {

/// Catches SIGTERM and SIGUSR1 from now to the end of the process: Slurm sends them again and again, also to a rank that is leaving.
void catch_stop_signals();

/// 0, or the signal that came last.
int stop_requested();

}  // namespace lockstep
