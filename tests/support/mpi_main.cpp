// mpi_main: runs tests on all ranks of MPI.  Rank 0 prints as usual, the others only what fails on them.
// A failure on any rank fails the run.  A fatal one (ASSERT, an exception) ends it at once, for the ranks are no longer in step.
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <string>

#include "comm/communicator.hpp"
#include "tensor/device.hpp"

namespace {

class RankPrinter : public testing::EmptyTestEventListener {
 public:
  explicit RankPrinter(int rank) : rank_(rank) {}
  void OnTestStart(const testing::TestInfo& test) override { name_ = std::string(test.test_suite_name()) + "." + test.name(); }
  void OnTestPartResult(const testing::TestPartResult& part) override {   // gtest holds its lock here: it must not be asked anything
    if (!part.failed()) return;
    if (rank_ != 0)
      std::printf("[%s] %s, %s:%d\n%s\n", lockstep::rank_name().c_str(), name_.c_str(),
                  part.file_name() ? part.file_name() : "", part.line_number(), part.message());
    std::fflush(stdout);
    if (part.fatally_failed()) lockstep::abort_all(1);
  }

 private:
  int rank_;
  std::string name_;
};

/// This rank's GPU (0 in a CPU build), or -1 on all ranks where there are not enough.
int choose_gpu(const lockstep::MpiSession& mpi) {
  if (lockstep::is_host_build()) return 0;
  try {
    return lockstep::choose_gpu(*lockstep::make_communicator(), lockstep::visible_gpus());
  } catch (const lockstep::Error& error) {
    if (mpi.rank() == 0) std::printf("skipped: %s\n", error.what());
    return -1;
  }
}

}  // namespace

/// Asked by the address sanitizer, if it is here.  Open MPI forgets a hundred kilobytes, in modules that it has unloaded by the end:
/// no suppression can name them.
extern "C" int __lsan_is_turned_off() { return 1; }

int main(int argc, char** argv) {
  try {
    const lockstep::MpiSession mpi(&argc, &argv);
    const int gpu = choose_gpu(mpi);
    if (gpu < 0) return 77;
    const lockstep::KokkosSession kokkos(gpu);
    testing::InitGoogleTest(&argc, argv);
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    if (mpi.rank() != 0) delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new RankPrinter(mpi.rank()));          // gtest owns it
    const int result = RUN_ALL_TESTS();
    return static_cast<int>(lockstep::make_communicator()->max(result));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[%s] %s\n", lockstep::rank_name().c_str(), error.what());
    lockstep::abort_all(1);
  }
}
