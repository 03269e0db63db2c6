// communicator_nccl: ranks that sum the memory of their GPUs by NCCL, on the device's streams; all else by the communicator inside, over MPI.
// NCCL's own variables (NCCL_*) are the user's; only NCCL_GRAPH_MIXING_SUPPORT is set to 0 unless the user did: sums run in recordings alone.
#include <dlfcn.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <source_location>
#include <thread>

#include "comm/communicator.hpp"
#include "tensor/cuda_check.hpp"

namespace lockstep {
namespace {

void check(ncclResult_t status, std::source_location site = std::source_location::current()) {
  if (status == ncclSuccess) return;
  fail_on_gpu(text_of("NCCL: ", ncclGetErrorString(status), " at ", site.file_name(), ":", site.line(), ": ", ncclGetLastError(nullptr), " (NCCL_DEBUG=INFO says more)"));
}
/// Looks once a second whether NCCL has lost a peer or the network: its kernels then wait for ever, and the host for them.
/// A rank that leaves with a message of its own, or that the watchdog or the launcher finds dead, ends the job within moments; what NCCL noticed of
/// that is told only if the job lives on.  Between GPUs of one host NCCL notices nothing: there, theirs is the only word.
class FaultWatch {
 public:
  explicit FaultWatch(ncclComm_t nccl) : thread_([this, nccl] { run(nccl); }) {}
  ~FaultWatch() {
    {
      std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

 private:
  static constexpr std::chrono::seconds period{1}, patience{6};

  bool rests(std::chrono::seconds time) {                   // false: it is to end
    std::unique_lock lock(mutex_);
    return !wake_.wait_for(lock, time, [this] { return is_ending_; });
  }
  void run(ncclComm_t nccl) {
    while (rests(period)) {
      ncclResult_t fault = ncclSuccess;
      const ncclResult_t status = ncclCommGetAsyncError(nccl, &fault);
      if (status != ncclSuccess) fault = status;
      if (fault == ncclSuccess || fault == ncclInProgress) continue;
      if (!rests(patience)) return;
      std::fprintf(stderr, "lockstep[%s]: error: NCCL: %s: %s A rank or the network between hosts is lost; the last checkpoint is whole. "
                   "NCCL_DEBUG=INFO says more.\n", rank_name().c_str(), ncclGetErrorString(fault), ncclGetLastError(nccl));
      abort_all(exit_internal);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_ending_ = false;
  std::thread thread_;                                      // the last member: it starts when the others are ready
};

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(std::unique_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {}
  ~NcclCommunicator() override {
    watch_.reset();
    if (!nccl_) return;
    // A rank that leaves by an exception would wait for the others in ncclCommDestroy.
    std::uncaught_exceptions() > exceptions_ ? ncclCommAbort(nccl_) : ncclCommDestroy(nccl_);
  }

  /// Takes seconds, and memory of the GPU.  Collective; not while a recording is made.
  void connect() {
    ncclUniqueId id{};
    if (ranks_->rank() == 0) check(ncclGetUniqueId(&id));
    ranks_->broadcast(&id, sizeof id, 0);
    check(ncclCommInitRank(&nccl_, ranks_->size(), id, ranks_->rank()));
    watch_ = std::make_unique<FaultWatch>(nccl_);
  }

  void all_reduce_sum(Device& device, Tensor buffer, StreamId stream) override {
    if (calls_) calls_->fetch_add(1, std::memory_order_relaxed);
    if (buffer.dtype != DType::f32) fail_with(exit_internal, "all_reduce_sum: ", name_of(buffer.dtype), "; it sums f32 only");
    if (buffer.size() == 0) return;
    if (!nccl_) connect();                                  // a group's first sum, which is never recorded: Device::record runs what it records before
    check(ncclAllReduce(buffer.data, buffer.data, static_cast<std::size_t>(buffer.size()), ncclFloat, ncclSum, nccl_,
                        static_cast<cudaStream_t>(device.native_stream(stream))));
  }
  bool is_recordable() const override { return true; }
  Allocation allocate(Device& device, std::size_t bytes) override { return device.allocate(bytes); }
  std::unique_ptr<Communicator> split(int group) override {
    std::unique_ptr<Communicator> part = ranks_->split(group);
    if (part->size() == 1) return part;
    auto made = std::make_unique<NcclCommunicator>(std::move(part));
    made->calls_ = calls_;
    return made;
  }
  void count_calls(std::atomic<std::int64_t>* calls) override {
    calls_ = calls;
    ranks_->count_calls(calls);
  }

  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  int local_rank() const override { return ranks_->local_rank(); }
  int local_size() const override { return ranks_->local_size(); }
  void broadcast(void* data, std::size_t bytes, int root) override { ranks_->broadcast(data, bytes, root); }
  double sum(double value) override { return ranks_->sum(value); }
  void sum(std::span<double> values) override { ranks_->sum(values); }
  void sum(std::span<std::int64_t> values) override { ranks_->sum(values); }
  std::int64_t max(std::int64_t value) override { return ranks_->max(value); }
  std::int64_t min(std::int64_t value) override { return ranks_->min(value); }
  std::vector<std::string> gather(const std::string& text) override { return ranks_->gather(text); }
  std::string broadcast(const std::string& text, int root) override { return ranks_->broadcast(text, root); }
  void barrier() override { ranks_->barrier(); }
  void start_agree(int value) override { ranks_->start_agree(value); }
  int finish_agree() override { return ranks_->finish_agree(); }

 private:
  std::unique_ptr<Communicator> ranks_;
  ncclComm_t nccl_ = nullptr;
  std::unique_ptr<FaultWatch> watch_;
  std::atomic<std::int64_t>* calls_ = nullptr;
  int exceptions_ = std::uncaught_exceptions();
};

/// "2.28.9" of 22809.
std::string nccl_text(int version) { return text_of(version / 10000, ".", version % 10000 / 100, ".", version % 100); }

/// A line each.
std::string versions() {
  int driver = 0, runtime = 0, nccl = 0;
  check_cuda(cudaDriverGetVersion(&driver));
  check_cuda(cudaRuntimeGetVersion(&runtime));
  check(ncclGetVersion(&nccl));
  std::string module = "?";                                 // a container may hide it
  std::ifstream("/sys/module/nvidia/version") >> module;
  // cuDNN is linked by backends/, if at all; here only its version is asked for.
  const auto cudnn = reinterpret_cast<std::size_t (*)()>(dlsym(RTLD_DEFAULT, "cudnnGetVersion"));
  return text_of("CUDA ", runtime / 1000, ".", runtime % 1000 / 10, "\nNVIDIA driver ", module, " for CUDA ", driver / 1000, ".", driver % 1000 / 10, "\nNCCL ", nccl_text(nccl),
                 "\ncuDNN ", cudnn ? text_of(cudnn()) : "none");
}

void require_new_enough() {
  int nccl = 0;
  check(ncclGetVersion(&nccl));
  require(nccl / 100 >= NCCL_VERSION_CODE / 100, "NCCL ", nccl_text(nccl), " was loaded, which is older than the ", nccl_text(NCCL_VERSION_CODE),
          " that lockstep was built with. Load the newer one (LD_LIBRARY_PATH, or its module), or build lockstep anew on this machine.");
}

void warn_of_mixed_models(Communicator& ranks, Device& device, const std::function<void(const std::string&)>& warn) {
  const std::vector<std::string> models = ranks.gather(text_of(device.name(), " on ", host_name()));
  for (const std::string& model : models)
    if (model.substr(0, model.rfind(" on ")) != device.name())
      return warn(text_of("warning: the GPUs differ: ", models[0], ", ", model, ". Every step waits for the slowest."));
}

}  // namespace

std::unique_ptr<Communicator> with_gpus(std::unique_ptr<Communicator> ranks, Device& device, const std::function<void(const std::string&)>& warn) {
  if (ranks->size() == 1 || device.is_plan_only()) return ranks;
  require_same(*ranks, "the GPU software", versions(), "Give all ranks nodes with the same driver, and the same libraries (LD_LIBRARY_PATH, modules).");
  require_new_enough();
  warn_of_mixed_models(*ranks, device, warn);
  ::setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0);
  auto gpus = std::make_unique<NcclCommunicator>(std::move(ranks));
  gpus->connect();                                          // what is wrong with the network is told here, not in the first step
  return gpus;
}

}  // namespace lockstep
