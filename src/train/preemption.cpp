#include "train/preemption.hpp"

#include <atomic>
#include <csignal>

#include "base/error.hpp"

namespace lockstep {
namespace {

std::atomic<int> requested{0};                              // a global: a signal handler can reach nothing else
static_assert(std::atomic<int>::is_always_lock_free);       // so that a handler may write it

void note(int signal) { requested.store(signal); }

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;                             // a pread in flight goes on
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGUSR1})
    if (sigaction(signal, &action, nullptr) != 0) fail_with(exit_internal, "sigaction failed for signal ", signal);
}

int stop_requested() { return requested.load(); }

}  // namespace lockstep
