// communicator_nccl: ranks that sum the memory of their GPUs by NCCL, on the device's streams; all else by the communicator inside, over MPI.
// NCCL's own variables (NCCL_*) are the user's; only NCCL_GRAPH_MIXING_SUPPORT is set to 0 unless the user did: sums run in recordings alone.
#include <cuda_runtime.h>
#include <nccl.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <map>
#include <source_location>

#include "comm/communicator.hpp"

namespace lockstep {
namespace {

void check(ncclResult_t status, std::source_location site = std::source_location::current()) {
  if (status == ncclSuccess) return;
  fail_with(exit_internal, "NCCL: ", ncclGetErrorString(status), " at ", site.file_name(), ":", site.line(), ": ", ncclGetLastError(nullptr),
            " (NCCL_DEBUG=INFO says more)");
}
void check(cudaError_t status, std::source_location site = std::source_location::current()) {
  if (status != cudaSuccess) fail_with(exit_internal, "CUDA: ", cudaGetErrorString(status), " at ", site.file_name(), ":", site.line());
}

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(std::unique_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {
    ncclUniqueId id{};
    if (ranks_->rank() == 0) check(ncclGetUniqueId(&id));
    ranks_->broadcast(&id, sizeof id, 0);
    check(ncclCommInitRank(&nccl_, ranks_->size(), id, ranks_->rank()));
  }
  ~NcclCommunicator() override {
    // A rank that leaves by an exception would wait for the others in ncclCommDestroy.
    std::uncaught_exceptions() > exceptions_ ? ncclCommAbort(nccl_) : ncclCommDestroy(nccl_);
  }

  void all_reduce_sum(Device& device, Tensor buffer, StreamId stream) override {
    if (calls_) calls_->fetch_add(1, std::memory_order_relaxed);
    if (buffer.dtype != DType::f32) fail_with(exit_internal, "all_reduce_sum: ", name_of(buffer.dtype), "; it sums f32 only");
    if (buffer.size() == 0) return;
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
  std::atomic<std::int64_t>* calls_ = nullptr;
  int exceptions_ = std::uncaught_exceptions();
};

/// Host and place of this rank's GPU: the same for two ranks only if they share it.
std::string place_of_gpu() {
  int ordinal = 0;
  std::array<char, 32> bus{};
  check(cudaGetDevice(&ordinal));
  check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), ordinal));
  return text_of("GPU ", bus.data(), " of ", host_name());
}

std::string versions() {
  int driver = 0, runtime = 0, nccl = 0;
  check(cudaDriverGetVersion(&driver));
  check(cudaRuntimeGetVersion(&runtime));
  check(ncclGetVersion(&nccl));
  return text_of("CUDA ", runtime, ", a driver for CUDA ", driver, ", NCCL ", nccl);
}

/// Error on all ranks if two of them have one GPU.
void require_own_gpus(Communicator& ranks) {
  const std::vector<std::string> places = ranks.gather(place_of_gpu());
  std::string shared;
  std::map<std::string, std::size_t> first;
  for (std::size_t rank = 0; rank < places.size() && shared.empty(); ++rank)
    if (const auto [at, is_new] = first.try_emplace(places[rank], rank); !is_new)
      shared = text_of("ranks ", at->second, " and ", rank, " both have ", places[rank],
                       ". Start at most as many ranks on a node as it has GPUs (--ntasks-per-node), and ask for one GPU a task (--gpus-per-task=1) or for all of the node's.");
  shared = ranks.broadcast(shared, 0);
  require(shared.empty(), shared);
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
  require_same(*ranks, "the GPU libraries", versions());
  require_own_gpus(*ranks);
  warn_of_mixed_models(*ranks, device, warn);
  ::setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0);
  return std::make_unique<NcclCommunicator>(std::move(ranks));
}

}  // namespace lockstep
