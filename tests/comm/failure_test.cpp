// What the user sees when a rank stops, hangs, throws or is started wrongly.  Each test starts this program again under mpirun;
// there it runs the test named Victim, which plays the part that LOCKSTEP_VICTIM names.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"

namespace lockstep {
namespace {

constexpr double stall_seconds = 3;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

/// Steps that all ranks do together, until rank 1 plays its part in step 20.
void train(const std::string& part) {
  const MpiSession mpi(nullptr, nullptr);
  const auto comm = make_communicator();
  Progress progress;
  comm->count_calls(&progress.calls);
  const Watchdog watchdog(progress, stall_seconds, 60);
  progress.phase = Phase::training;
  for (int step = 0; step < 1000; ++step) {
    progress.step = step;
    progress.tick();
    sleep_ms(10);
    if (step == 20 && comm->rank() == (comm->size() > 1 ? 1 : 0)) {
      if (part == "stop") raise(SIGSTOP);
      if (part == "hang") sleep_ms(1000000);
      if (part == "throw") fail_with(exit_diverged, "the loss is not finite");
      if (part == "die") raise(SIGKILL);
    }
    comm->sum(1.0);
  }
}

TEST(Victim, DISABLED_PlaysItsPart) {
  try {
    train(std::getenv("LOCKSTEP_VICTIM"));
  } catch (const Error& error) {                            // as main does
    std::fprintf(stderr, "lockstep[%s]: error: %s\n", rank_name().c_str(), error.what());
    abort_all(error.code());
  }
}

struct Outcome {
  int code;
  double seconds;
  std::string output;
  int count(const std::string& words) const {
    int found = 0;
    for (std::size_t at = output.find(words); at != std::string::npos; at = output.find(words, at + 1)) ++found;
    return found;
  }
};

/// before: a launcher, or variables.
Outcome run_victim(const std::string& part, const std::string& before) {
  char self[4096] = "";
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) fail("no /proc");
  const std::string command = text_of("LOCKSTEP_VICTIM=", part, " OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 ", before, " ", self,
                                      " --gtest_also_run_disabled_tests --gtest_filter=Victim.* 2>&1");
  const auto begin = std::chrono::steady_clock::now();
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const std::size_t n = fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  const int status = pclose(pipe);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), seconds, output};
}
Outcome run_ranks(const std::string& part, int ranks) {
  return run_victim(part, text_of("timeout 60 mpirun --oversubscribe --bind-to none -n ", ranks));
}

TEST(Failure, AStoppedRankIsNamedAndTheJobEnds) {
  for (const int ranks : {2, 4}) {
    const Outcome seen = run_ranks("stop", ranks);
    EXPECT_EQ(seen.code, exit_internal) << seen.output;
    EXPECT_EQ(seen.count("]: error: "), 1) << seen.output;
    EXPECT_EQ(seen.count("no message comes any more from rank 1 on " + host_name() + " (step "), 1) << seen.output;
    EXPECT_LT(seen.seconds, stall_seconds + 12) << seen.output;          // starting, stopping and a busy machine included
  }
}

TEST(Failure, ARankThatHangsIsNamedNotThoseThatWaitForIt) {
  for (const int ranks : {1, 2, 4}) {
    const Outcome seen = run_ranks("hang", ranks);
    EXPECT_EQ(seen.code, exit_internal) << seen.output;
    EXPECT_EQ(seen.count("]: error: "), 1) << seen.output;
    EXPECT_EQ(seen.count(text_of("no progress: rank ", ranks > 1 ? 1 : 0, " on ", host_name(), " (step 20, training")), 1) << seen.output;
    EXPECT_LT(seen.seconds, stall_seconds + 12) << seen.output;
  }
}

TEST(Failure, AnExceptionOnOneRankEndsAllWithItsMessageAndItsCode) {
  for (const int ranks : {1, 2, 4}) {
    const Outcome seen = run_ranks("throw", ranks);
    EXPECT_EQ(seen.code, exit_diverged) << seen.output;
    EXPECT_EQ(seen.count(text_of("lockstep[rank ", ranks > 1 ? 1 : 0, " of ", ranks, ", ", host_name(), "]: error: the loss is not finite")), 1) << seen.output;
    EXPECT_LT(seen.seconds, 12) << seen.output;
  }
}

TEST(Failure, AKilledRankEndsTheJob) {
  const Outcome seen = run_ranks("die", 2);
  EXPECT_NE(seen.code, 0) << seen.output;
  EXPECT_LT(seen.seconds, stall_seconds + 12) << seen.output;
}

TEST(Failure, TasksThatAreAloneToMpiAreExplained) {
  const std::string slurm = "env SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2 ";
  for (const std::string& variables : {slurm, slurm + "PMI_RANK=2 ", std::string("env OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 ")}) {
    const Outcome seen = run_victim("", variables);
    EXPECT_EQ(seen.code, exit_bad_input) << seen.output;
    EXPECT_EQ(seen.count("started 4 "), 1) << seen.output;
    EXPECT_EQ(seen.count(variables[4] == 'S' ? "srun --mpi=pmix" : "belongs to another MPI"), 1) << seen.output;
  }
  const Outcome before_init = run_victim("", slurm);
  EXPECT_EQ(before_init.count("lockstep[rank 2 of 4, "), 1) << before_init.output;
}

}  // namespace
}  // namespace lockstep
