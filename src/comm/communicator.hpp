// communicator: the ranks of a run.  One process a rank; communicator_mpi.cpp, and communicator_nccl.cpp around it for GPUs.
// Every call is collective unless it says otherwise.  CPU ranks sum in a fixed balanced tree over the rank index: equal ranks, equal bits.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/device.hpp"
#include "tensor/tensor.hpp"

namespace lockstep {

/// Owns MPI's lifetime.  One in main; tests have one too.
class MpiSession {
 public:
  /// Initializes with MPI_THREAD_MULTIPLE (less: Error).  N singletons under srun: Error that says why.
  MpiSession(int* argc, char*** argv);
  ~MpiSession();  // finalizes, unless abort() ended the job
  int rank() const;
  int size() const;
};

/// "rank 0 of 8, node17": for messages; works before, during and after MPI.  Empty for a process that no launcher started, outside MPI.
std::string rank_name();
/// Ends all ranks with this exit code; does not return.  Not collective.  After an Error's message has been printed.
[[noreturn]] void abort_all(int code);
/// Host name of this process.
std::string host_name();

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;    // among the ranks of this host
  virtual int local_size() const = 0;

  /// Memory for gradients and exchanges, zeroed (symmetric or registered where a library wants that).
  virtual Allocation allocate(Device& device, std::size_t bytes) = 0;
  /// buffer = sum over ranks.  f32, device memory; queued on `stream` of the device; in place.
  virtual void all_reduce_sum(Device& device, Tensor buffer, StreamId stream) = 0;
  /// Whether all_reduce_sum may be part of a recording.
  virtual bool is_recordable() const = 0;

  // Host memory, over MPI.
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  virtual double sum(double value) = 0;
  virtual void sum(std::span<double> values) = 0;                 // in place, in the fixed order
  virtual void sum(std::span<std::int64_t> values) = 0;
  virtual std::int64_t max(std::int64_t value) = 0;
  virtual std::int64_t min(std::int64_t value) = 0;
  virtual std::vector<std::string> gather(const std::string& text) = 0;          // rank order; empty on all but rank 0
  virtual std::string broadcast(const std::string& text, int root) = 0;
  virtual void barrier() = 0;

  /// Agreement that costs nothing: start at one step boundary, finish at a later one; the result is the largest value of all ranks.
  virtual void start_agree(int value) = 0;
  virtual int finish_agree() = 0;

  /// The ranks [k*group, (k+1)*group) that this rank is in; group = 0: all.  Error when it does not divide size().
  virtual std::unique_ptr<Communicator> split(int group) = 0;

  /// Every collective call raises *calls as it begins, and so do those of communicators split off later; nullptr ends that.  The watchdog
  /// tells a rank that others wait for from those that wait by it.  Not collective.
  virtual void count_calls(std::atomic<std::int64_t>* calls) = 0;
};

/// Over MPI_COMM_WORLD.  Device memory is summed through the host's.
std::unique_ptr<Communicator> make_communicator();
/// The same ranks, which sum the memory of their GPUs by NCCL where this build has it; else `ranks` itself.  Collective, after choose_gpu.
/// Errors: hosts whose NVIDIA driver, CUDA, cuDNN or NCCL differ; an NCCL older than the build's.  A GPU of another model is told by warn, on rank 0.
std::unique_ptr<Communicator> with_gpus(std::unique_ptr<Communicator> ranks, Device& device, const std::function<void(const std::string&)>& warn);

/// For each rank the place in its list of the GPU that it takes, so that no two share one; -1 for those that get none, as few as can be.
/// gpus: of each rank, the GPUs that it sees; the same text, the same GPU.
std::vector<int> assign_gpus(const std::vector<std::vector<std::string>>& gpus);
/// The ordinal of this rank's GPU, however the launcher has made GPUs visible: all of the host to each rank, one, or some.  Collective.
/// Error on all ranks where one gets none.
int choose_gpu(Communicator& comm, const VisibleGpus& visible);

/// Where one rank computes.
struct RankPlace {
  std::string host;
  int threads = 1;
  std::vector<int> cpus;                 // that it may run on; a launcher's binding can leave it one
};
/// A line a host, or as many as its ranks differ in: ranks, host, threads; what is slow, and the right number.  ranks: in rank order.
std::string describe_places(const std::vector<RankPlace>& ranks);
/// The same of this launch; empty on all but rank 0.  threads: of this rank.  Collective.
std::string describe_ranks(Communicator& comm, int threads);

/// Error on all ranks, naming the hosts and the first line that differs, unless every rank hands in the same text.  what: "the build", ...
void require_same(Communicator& comm, const std::string& what, const std::string& text,
                  const std::string& advice = "Give all ranks the same program, input file and arguments (a folder that all nodes share does).");

}  // namespace lockstep
