// device_host: the CPU as a device.  All streams are the calling thread, in order; Kokkos' default execution space does the work.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"
#include "tensor/device.hpp"
#include "tensor/views.hpp"

namespace lockstep {

namespace {
constexpr std::size_t large_page = std::size_t{2} << 20;
}

struct Device::State {
  ExecutionSpace space;
  StreamId stream = StreamId::compute;
  std::shared_ptr<std::atomic<std::size_t>> allocated = std::make_shared<std::atomic<std::size_t>>(0);
};

namespace {

class HostReplay final : public Replay {
 public:
  explicit HostReplay(std::function<void()> fn) : fn_(std::move(fn)) {}
  void run() override { fn_(); }

 private:
  std::function<void()> fn_;
};

}  // namespace

KokkosSession::KokkosSession(int, int threads) {
  Kokkos::InitializationSettings settings;
  settings.set_disable_warnings(true);
  if (threads > 0) settings.set_num_threads(threads);
  Kokkos::initialize(settings);
}
void on_gpu_lost(void (*)(const std::string&)) {}

KokkosSession::~KokkosSession() { Kokkos::finalize(); }

bool is_host_build() { return true; }
VisibleGpus visible_gpus() { return {{}, "this is a CPU build"}; }

Device::Device(bool plans_only) : state_(std::make_unique<State>()), plans_only_(plans_only) {}
Device::~Device() = default;

bool Device::is_host() const { return true; }
std::string Device::name() const { return text_of("CPU, ", counted(concurrency(), "thread")); }
int Device::concurrency() const { return state_->space.concurrency(); }
std::size_t Device::memory_bytes() const { return 0; }
std::size_t Device::free_bytes() const { return limit_bytes_ > allocated_bytes() ? limit_bytes_ - allocated_bytes() : 0; }
std::size_t Device::allocated_bytes() const { return state_->allocated->load(); }

Allocation Device::allocate(std::size_t bytes) {
  // Large pages for what fills them (most Linux systems give them only when asked): a batch's rows are read from hundreds of small ones.
  const std::size_t alignment = bytes < large_page ? 256 : large_page, rounded = (bytes + alignment - 1) / alignment * alignment;
  void* data = rounded == 0 ? nullptr : std::aligned_alloc(alignment, rounded);
  if (data && alignment == large_page) ::madvise(data, rounded, MADV_HUGEPAGE);
  require(data || rounded == 0, "this host has no ", bytes >> 20, " MiB of memory left. Lower data.global_batch, or raise data.micro_batches.");
  if (data) std::memset(data, 0, rounded);
  auto allocated = state_->allocated;
  allocated->fetch_add(rounded);
  return Allocation(data, bytes, [allocated, rounded](void* p) {
    std::free(p);
    allocated->fetch_sub(rounded);
  });
}
Allocation Device::allocate_pinned(std::size_t bytes) { return allocate(bytes); }

void Device::copy_to_device(void* device, const void* host, std::size_t bytes, StreamId) {
  if (device != host) std::memcpy(device, host, bytes);
}
void Device::copy_to_host(void* host, const void* device, std::size_t bytes) {
  wait();
  if (device != host) std::memcpy(host, device, bytes);
}
void Device::copy(void* to, const void* from, std::size_t bytes) { std::memmove(to, from, bytes); }
void Device::zero(void* device, std::size_t bytes) { std::memset(device, 0, bytes); }

void Device::use(StreamId stream) { state_->stream = stream; }
StreamId Device::current() const { return state_->stream; }
void Device::join(StreamId, StreamId) {}
void* Device::native_stream(StreamId) const { return nullptr; }
void Device::wait() { state_->space.fence("device.wait"); }

std::unique_ptr<Replay> Device::record(std::function<void()> fn, bool) { return std::make_unique<HostReplay>(std::move(fn)); }

const ExecutionSpace& execution_space(const Device& device) { return device.state().space; }

struct Flight::State {};
Flight::Flight(Device&) {}
Flight::~Flight() = default;
void Flight::limit(int) {}

struct Timeline::State {
  std::vector<std::pair<std::string, double>> pieces;
  double last = stopwatch_seconds();
};
Timeline::Timeline(Device&) : state_(new State) {}
Timeline::~Timeline() = default;
void Timeline::mark(const std::string& label) {
  const double now = stopwatch_seconds();
  state_->pieces.emplace_back(label, 1e3 * (now - state_->last));
  state_->last = now;
}
std::vector<std::pair<std::string, double>> Timeline::milliseconds() { return state_->pieces; }

ProfileRange::ProfileRange(const char*) : is_open_(false) {}
ProfileRange::~ProfileRange() = default;

ProfilerCapture::ProfilerCapture(Device& device) : device_(device) {}
ProfilerCapture::~ProfilerCapture() = default;

double stopwatch_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep
