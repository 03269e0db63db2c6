#include "comm/watchdog.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/mpi_check.hpp"
#include "comm/verdict.hpp"

namespace lockstep {

const char* name_of(Phase phase) {
  constexpr std::array names = {"starting", "warm-up", "training", "evaluation", "checkpoint", "finishing"};
  return names.at(static_cast<std::size_t>(phase));
}

namespace {

constexpr int tag = 1;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// The two neighbours at one distance: this rank sends to the one that far ahead, and hears from the one that far behind.
/// Synchronous sends: one that is complete has been received, so nothing is left in the network at the end.
struct Neighbour {
  int to, from;
  MPI_Request send = MPI_REQUEST_NULL, receive = MPI_REQUEST_NULL;
  std::vector<Beat> outbox, inbox;
};

}  // namespace

/// All but the constructor and the flags runs in the watchdog's own thread.
struct Watchdog::State {
  State(const Progress& watched, double stall_seconds, double start_seconds, const std::atomic<bool>* is_terminated);
  void run() noexcept;
  void watch();                                             // until the end, or until it ends the job
  void leave();                                             // after all ranks have come to ~Watchdog
  void advance_clock();
  void observe();
  void hear();
  void speak();
  void complain();
  bool has_unheard_sends();
  double age(int r) const { return awake_seconds - heard_at[static_cast<std::size_t>(r)]; }

  const Progress& progress;
  const std::atomic<bool>* terminated;                      // or null
  Limits limits;
  double period;                                            // between two beats
  int rank = 0, size = 1;
  std::unique_ptr<OwnedComm> comm;                          // none for one rank
  std::vector<std::string> hosts;
  std::vector<Beat> beats;                                  // the newest known of each rank
  std::vector<double> heard_at;
  std::vector<Neighbour> neighbours;
  std::size_t next_neighbour = 0;

  /// Time in which this process ran: a job that Slurm suspends as a whole has not stalled when it goes on.
  double awake_seconds = 0;
  Clock::time_point last_look = Clock::now();
  double next_beat = 0, progress_at = 0, complaint_at = -1;
  std::tuple<std::int64_t, std::int64_t, std::int64_t, Phase> last_seen;

  std::mutex mutex;
  std::condition_variable wake;
  bool is_leaving = false, is_abandoned = false;            // both under the mutex
  MPI_Request all_here = MPI_REQUEST_NULL;
  std::thread thread;                                       // the last member: it starts when the others are ready
};

Watchdog::State::State(const Progress& watched, double stall_seconds, double start_seconds, const std::atomic<bool>* is_terminated)
    : progress(watched), terminated(is_terminated) {
  if (is_mpi_up()) {
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size));
  }
  period = std::min(0.5, stall_seconds / 8);
  const std::size_t ranks = static_cast<std::size_t>(size);
  beats.resize(ranks);
  heard_at.resize(ranks);
  hosts.assign(ranks, host_name());
  if (size > 1) {
    comm = std::make_unique<OwnedComm>(OwnedComm::duplicate(MPI_COMM_WORLD));
    constexpr int width = 64;
    std::vector<char> names(ranks * width);
    std::string mine = hosts[0].substr(0, width - 1);
    mine.resize(width);
    check_mpi(MPI_Allgather(mine.data(), width, MPI_CHAR, names.data(), width, MPI_CHAR, comm->get()));
    for (std::size_t r = 0; r < ranks; ++r) hosts[r] = names.data() + r * width;
    for (int distance = 1; distance < size; distance *= 2)
      neighbours.push_back({.to = (rank + distance) % size, .from = (rank - distance + size) % size, .outbox = {}, .inbox = std::vector<Beat>(ranks)});
  }
  // A message takes up to two of its sender's rounds over the neighbours: one until its turn comes, one over other ranks.
  limits = {stall_seconds, start_seconds, period * static_cast<double>(2 * neighbours.size() + 1), false};
  thread = std::thread([this] { run(); });
}

void Watchdog::State::run() noexcept {
  try {
    watch();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep[%s]: error: watchdog: %s\n", rank_name().c_str(), error.what());
    abort_all(exit_internal);
  }
}

void Watchdog::State::watch() {
  double pause = period / 4;                                // news is passed on, and a signal to leave seen, within a fraction of a period
  while (true) {
    bool wants_to_leave;
    {
      std::unique_lock lock(mutex);
      const auto has_changed = [&] { return is_abandoned || (is_leaving && all_here == MPI_REQUEST_NULL); };
      wake.wait_for(lock, Seconds(pause), has_changed);
      if (is_abandoned) return;
      wants_to_leave = is_leaving;
    }
    advance_clock();
    observe();
    hear();
    beats[static_cast<std::size_t>(rank)].is_leaving = wants_to_leave;
    if (awake_seconds >= next_beat) speak();
    complain();
    if (!wants_to_leave) continue;
    if (size == 1) return;
    if (all_here == MPI_REQUEST_NULL) {
      check_mpi(MPI_Ibarrier(comm->get(), &all_here));
      pause = 0.001;                                        // the last steps are usually short
    }
    int is_complete = 0;
    check_mpi(MPI_Test(&all_here, &is_complete, MPI_STATUS_IGNORE));
    if (is_complete) return leave();
    pause = std::min(2 * pause, period / 4);
  }
}

/// No rank sends any more once its own sends have been received; when all ranks say so, nothing is under way.
void Watchdog::State::leave() {
  MPI_Request all_heard = MPI_REQUEST_NULL;
  bool is_heard = false;
  for (double pause = 0.0005;; pause = std::min(2 * pause, period / 4)) {
    hear();
    if (!is_heard && !has_unheard_sends()) {
      is_heard = true;
      check_mpi(MPI_Ibarrier(comm->get(), &all_heard));
    }
    if (is_heard) {
      int is_complete = 0;
      check_mpi(MPI_Test(&all_heard, &is_complete, MPI_STATUS_IGNORE));
      if (is_complete) break;
    }
    advance_clock();
    if (age(rank) > limits.stall_seconds + 2 * limits.news_seconds) fail_with(exit_internal, "the ranks do not come to an end together");
    std::this_thread::sleep_for(Seconds(pause));
  }
  for (Neighbour& n : neighbours) {
    if (n.receive == MPI_REQUEST_NULL) continue;
    check_mpi(MPI_Cancel(&n.receive));
    check_mpi(MPI_Wait(&n.receive, MPI_STATUS_IGNORE));
  }
}

void Watchdog::State::advance_clock() {
  const Clock::time_point now = Clock::now();
  awake_seconds += std::min(Seconds(now - last_look).count(), 2 * period);
  last_look = now;
}

void Watchdog::State::observe() {
  const auto seen = std::tuple(progress.ticks.load(std::memory_order_relaxed), progress.step.load(std::memory_order_relaxed),
                               progress.calls.load(std::memory_order_relaxed), progress.phase.load(std::memory_order_relaxed));
  if (seen != last_seen) progress_at = awake_seconds;
  last_seen = seen;
  Beat& mine = beats[static_cast<std::size_t>(rank)];
  mine.step = std::get<1>(seen);
  mine.calls = std::get<2>(seen);
  mine.phase = std::get<3>(seen);
  mine.idle_seconds = awake_seconds - progress_at;
}

/// Takes what has come in, and is ready for more.
void Watchdog::State::hear() {
  for (Neighbour& n : neighbours)
    while (true) {
      int is_complete = 0;
      if (n.receive != MPI_REQUEST_NULL) {
        check_mpi(MPI_Test(&n.receive, &is_complete, MPI_STATUS_IGNORE));
        if (!is_complete) break;
        for (std::size_t r = 0; r < beats.size(); ++r)
          if (n.inbox[r].number > beats[r].number) {
            beats[r] = n.inbox[r];
            heard_at[r] = awake_seconds;
          }
      }
      check_mpi(MPI_Irecv(n.inbox.data(), static_cast<int>(n.inbox.size() * sizeof(Beat)), MPI_BYTE, n.from, tag, comm->get(), &n.receive));
    }
}

/// One message a period, to the neighbours in turn; none to one that has not taken the last.
void Watchdog::State::speak() {
  next_beat = awake_seconds + period;
  heard_at[static_cast<std::size_t>(rank)] = awake_seconds;
  ++beats[static_cast<std::size_t>(rank)].number;
  if (neighbours.empty()) return;
  Neighbour& n = neighbours[next_neighbour++ % neighbours.size()];
  int is_complete = 1;
  check_mpi(MPI_Test(&n.send, &is_complete, MPI_STATUS_IGNORE));
  if (!is_complete) return;
  n.outbox = beats;
  check_mpi(MPI_Issend(n.outbox.data(), static_cast<int>(n.outbox.size() * sizeof(Beat)), MPI_BYTE, n.to, tag, comm->get(), &n.send));
}

bool Watchdog::State::has_unheard_sends() {
  bool has_some = false;
  for (Neighbour& n : neighbours) {
    int is_complete = 0;
    check_mpi(MPI_Test(&n.send, &is_complete, MPI_STATUS_IGNORE));
    has_some = has_some || !is_complete;
  }
  return has_some;
}

/// Ends the job if it has halted.  All ranks come to that finding at about the same time; they report three seconds apart, so that one does:
/// its MPI_Abort may take that long on a busy host.  Where a launcher is ending the job already, it has said who died and takes no more aborts: each
/// rank just ends.
void Watchdog::State::complain() {
  limits.is_ending = terminated && terminated->load(std::memory_order_relaxed);
  std::vector<Sight> sights(beats.size());
  for (std::size_t r = 0; r < beats.size(); ++r) sights[r] = {beats[r], static_cast<int>(r) == rank ? 0 : age(static_cast<int>(r))};
  const std::optional<Verdict> verdict = judge(rank, sights, limits);
  if (!verdict) {
    complaint_at = -1;
    return;
  }
  if (limits.is_ending && verdict->is_silent) std::_Exit(exit_internal);
  if (complaint_at < 0) complaint_at = awake_seconds + 3 * std::min(3, turn_to_report(*verdict, rank, size));
  if (awake_seconds < complaint_at) return;
  std::fprintf(stderr, "lockstep[%s]: error: %s\n", rank_name().c_str(), describe(*verdict, sights, hosts).c_str());
  abort_all(exit_internal);
}

Watchdog::Watchdog(const Progress& progress, double stall_seconds, double start_seconds, const std::atomic<bool>* is_terminated) {
  if (stall_seconds > 0) state_ = std::make_unique<State>(progress, stall_seconds, start_seconds, is_terminated);
}

Watchdog::~Watchdog() {
  if (!state_) return;
  const bool is_alone = state_->comm && state_->comm->is_unwinding();       // the others are not coming
  {
    std::lock_guard lock(state_->mutex);
    (is_alone ? state_->is_abandoned : state_->is_leaving) = true;
  }
  state_->wake.notify_one();
  state_->thread.join();
  if (is_alone) state_.release();                           // MPI may still use the buffers; the job is about to be aborted
}

}  // namespace lockstep
