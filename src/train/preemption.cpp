#include "train/preemption.hpp"

#include <unistd.h>

#include <csignal>

#include "base/error.hpp"

namespace lockstep {
namespace {

// Globals: a signal handler can reach nothing else.
std::atomic<int> requested{0}, code_at_end{-1};            // code_at_end: -1 where SIGTERM does not end the process
std::atomic<bool> is_terminated{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);       // so that a handler may write them

constexpr unsigned patience_seconds = 5;

void note(int signal) {
  requested.store(signal);
  if (signal != SIGTERM) return;
  is_terminated.store(true);
  if (code_at_end.load() >= 0) ::alarm(patience_seconds);
}

/// Without a word: the launcher has said who died, or that the job is to end.
void end_now(int) {
  if (const int code = code_at_end.load(); code >= 0) _exit(code);
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;                             // a pread in flight goes on
  sigemptyset(&action.sa_mask);
  if (sigaction(signal, &action, nullptr) != 0) fail_with(exit_internal, "sigaction failed for signal ", signal);
}

}  // namespace

void catch_stop_signals() {
  handle(SIGALRM, end_now);
  for (const int signal : {SIGTERM, SIGUSR1}) handle(signal, note);
}

int stop_requested() { return requested.load(); }

const std::atomic<bool>& has_been_terminated() { return is_terminated; }

void end_soon_after_sigterm(int code) { code_at_end.store(code); }

void stay_after_sigterm() {
  code_at_end.store(-1);
  ::alarm(0);
}

}  // namespace lockstep
