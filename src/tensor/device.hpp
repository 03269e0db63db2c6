// device: the one place that knows where work runs.  A CPU (device_host.cpp) or a GPU (device_cuda.cpp); CMake picks the file.
// Plain C++: streams and events are opaque, Kokkos' execution space is reached through tensor/views.hpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// Where a piece of work is queued.  On a CPU all three are the calling thread, in order.
enum class StreamId { compute, side, comm };

/// Kokkos' lifetime: one in main, one in a test's main.  ordinal: which GPU of this host, chosen before any other CUDA call
/// (a CPU build ignores it); threads: 0 takes what OMP_NUM_THREADS or the process's CPU mask gives.
class KokkosSession {
 public:
  explicit KokkosSession(int ordinal = 0, int threads = 0);
  ~KokkosSession();
  KokkosSession(const KokkosSession&) = delete;
  KokkosSession& operator=(const KokkosSession&) = delete;
};

/// Whether this program was built for CPUs: then there is always a device.
bool is_host_build();
/// The GPUs that this process sees, in the order of their ordinals, each by its place on the PCI bus; none in a CPU build.
struct VisibleGpus {
  std::vector<std::string> places;
  std::string reason;                    // why there is none, and what to do
};
VisibleGpus visible_gpus();

/// A GPU that a kernel's illegal address, its memory's or the bus's failure made useless to this process cannot be taken down in order: libraries' destructors crash
/// or wait.  end(message) is called where that shows, once, and ends the process.  In a CPU build nothing.
void on_gpu_lost(void (*end)(const std::string& message));

/// A recorded sequence of device work: a CUDA graph, or the function itself.  Destroy before the communicators it uses.
class Replay {
 public:
  virtual ~Replay() = default;
  virtual void run() = 0;
};

/// A region of device memory; freed with the owner.
class Allocation {
 public:
  Allocation() = default;
  Allocation(void* data, std::size_t bytes, std::function<void(void*)> release) : data_(data, std::move(release)), bytes_(bytes) {}
  void* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> data_;
  std::size_t bytes_ = 0;
};

class Device {
 public:
  /// The device that KokkosSession chose.  plans_only: none at all (`check` on a machine without a GPU); it may be asked is_host() and its limit alone.
  explicit Device(bool plans_only = false);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  bool is_host() const;
  bool is_plan_only() const { return plans_only_; }
  std::string name() const;
  int concurrency() const;                                  // CPU threads, or multiprocessors
  std::size_t memory_bytes() const;                         // in all; 0 where unknown
  std::size_t free_bytes() const;                           // now, for all processes, within the limit; 0 where unknown
  std::size_t limit_bytes() const { return limit_bytes_; }  // that allocate() of this device shall give out in all; 0: no limit
  void limit_memory(std::size_t bytes) { limit_bytes_ = bytes; }
  std::size_t allocated_bytes() const;                      // by allocate() of this device, now

  Allocation allocate(std::size_t bytes);                   // device memory, zeroed, 256-byte aligned
  Allocation allocate_pinned(std::size_t bytes);            // host memory that the device can copy from
  void copy_to_device(void* device, const void* host, std::size_t bytes, StreamId stream = StreamId::compute);
  void copy_to_host(void* host, const void* device, std::size_t bytes);  // waits
  void copy(void* to, const void* from, std::size_t bytes);  // within the device, on the current stream
  void zero(void* device, std::size_t bytes);                // on the current stream

  void use(StreamId stream);                                // later kernels go there; compute at start
  StreamId current() const;
  void join(StreamId waits, StreamId on);                   // `waits` goes on when what is queued on `on` is done
  void* native_stream(StreamId stream) const;               // cudaStream_t; null on a CPU
  void wait();                                              // the host waits for all streams; see house law 3

  /// Recordable: a GPU runs fn once eagerly (libraries allocate and load then) and captures it.  Else, and on a CPU, the replay is fn itself.
  std::unique_ptr<Replay> record(std::function<void()> fn, bool recordable);

  struct State;
  State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
  bool plans_only_ = false;
  std::size_t limit_bytes_ = 0;
};

/// Counts of what is in flight, so that the host is never more than `limit` steps ahead.
class Flight {
 public:
  explicit Flight(Device& device);
  ~Flight();
  void limit(int steps);  // call once a step, after enqueueing it

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// How long what is queued on the compute stream takes, piece by piece.
class Timeline {
 public:
  explicit Timeline(Device& device);
  ~Timeline();
  /// What was queued since the mark before (or since construction) is called `label`.
  void mark(const std::string& label);
  /// Milliseconds of each piece, in order; waits.
  std::vector<std::pair<std::string, double>> milliseconds();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Names a range for profilers (NVTX on a GPU; nothing on a CPU).  A null name: no range.
class ProfileRange {
 public:
  explicit ProfileRange(const char* name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  [[maybe_unused]] bool is_open_;
};

/// While it lives, a profiler that was told to wait for this records (cudaProfilerStart to cudaProfilerStop; nothing on a CPU).
/// Waits for the device at both ends, so that no work of before or after is in the record.
class ProfilerCapture {
 public:
  explicit ProfilerCapture(Device& device);
  ~ProfilerCapture();
  ProfilerCapture(const ProfilerCapture&) = delete;
  ProfilerCapture& operator=(const ProfilerCapture&) = delete;

 private:
  [[maybe_unused]] Device& device_;
};

/// Seconds on a monotonic clock; for plan timing and data wait.
double stopwatch_seconds();

}  // namespace lockstep
