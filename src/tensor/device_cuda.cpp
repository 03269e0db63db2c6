// device_cuda: one NVIDIA GPU as a device: three streams, recordings as CUDA graphs.
#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <vector>

#include "base/build_info.hpp"
#include "base/error.hpp"
#include "tensor/cuda_check.hpp"
#include "tensor/device.hpp"
#include "tensor/recording.hpp"
#include "tensor/views.hpp"

namespace lockstep {
namespace {

struct DestroyStream {
  void operator()(cudaStream_t s) const { cudaStreamDestroy(s); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t e) const { cudaEventDestroy(e); }
};
struct DestroyGraph {
  void operator()(cudaGraphExec_t g) const { cudaGraphExecDestroy(g); }
};
using Stream = std::unique_ptr<CUstream_st, DestroyStream>;
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;
using Executable = std::unique_ptr<CUgraphExec_st, DestroyGraph>;

Event make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return Event(event);
}
Stream make_stream(int priority) {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
  return Stream(stream);
}
std::size_t index_of(StreamId stream) { return static_cast<std::size_t>(stream); }

/// "13.0" of 13000.
std::string version_text(int version) { return text_of(version / 1000, ".", version % 1000 / 10); }

}  // namespace

/// Asked for, never run: whether this program has code for a GPU.
__global__ void any_kernel() {}

namespace {

/// Kokkos would end the process in words of its own.
void require_code_for(int ordinal) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, any_kernel);
  if (status == cudaSuccess) return;
  if (status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction && status != cudaErrorUnsupportedPtxVersion) check_cuda(status);
  cudaDeviceProp gpu{};
  check_cuda(cudaGetDeviceProperties(&gpu, ordinal));
  const int architecture = 10 * gpu.major + gpu.minor;
  fail("this build (", build_info().configuration, ") has no code for the GPU of this rank: ", gpu.name, ", architecture ", architecture,
       ". Build for it: LOCKSTEP_CUDA_ARCH=", architecture, " env/kokkos.sh cuda, then cmake with -DCMAKE_CUDA_ARCHITECTURES=", architecture, ".");
}

}  // namespace

struct Device::State {
  std::array<Stream, 3> streams;
  std::vector<ExecutionSpace> spaces;     // one a stream
  StreamId stream = StreamId::compute;
  std::deque<Event> events;              // of join; a captured join keeps its event alive here
  std::shared_ptr<std::atomic<std::size_t>> allocated = std::make_shared<std::atomic<std::size_t>>(0);
  cudaDeviceProp properties{};
  bool is_recording = false;
};

namespace {

class FunctionReplay final : public Replay {
 public:
  explicit FunctionReplay(std::function<void()> fn) : fn_(std::move(fn)) {}
  void run() override { fn_(); }

 private:
  std::function<void()> fn_;
};

class GraphReplay final : public Replay {
 public:
  GraphReplay(Executable graph, cudaStream_t stream) : graph_(std::move(graph)), stream_(stream) {}
  void run() override { check_cuda(cudaGraphLaunch(graph_.get(), stream_)); }

 private:
  Executable graph_;
  cudaStream_t stream_;
};

}  // namespace

namespace {

std::atomic<void (*)(const std::string&)> end_on_lost_gpu = nullptr;

/// After such an error every call returns it.
bool is_gpu_lost() {
  const cudaError_t status = cudaFree(nullptr);
  return status != cudaSuccess && (status < cudaErrorStreamCaptureUnsupported || status > cudaErrorStreamCaptureWrongThread);   // while a stream is captured it may not be called
}

}  // namespace

void on_gpu_lost(void (*end)(const std::string&)) { end_on_lost_gpu = end; }

void fail_on_gpu(const std::string& message) {
  static std::atomic_flag is_ending;
  if (const auto end = end_on_lost_gpu.load(); end && is_gpu_lost()) {
    if (!is_ending.test_and_set()) end(message);
    for (;;) pause();                    // another thread is at it
  }
  fail_with(exit_internal, message);
}

KokkosSession::KokkosSession(int ordinal, int threads) {
  const VisibleGpus gpus = visible_gpus();
  require(!gpus.places.empty(), gpus.reason);
  if (ordinal >= std::ssize(gpus.places)) fail_with(exit_internal, "GPU ", ordinal, " of ", gpus.places.size());
  check_cuda(cudaSetDevice(ordinal));
  require_code_for(ordinal);
  Kokkos::InitializationSettings settings;
  settings.set_device_id(ordinal).set_disable_warnings(true);
  if (threads > 0) settings.set_num_threads(threads);
  Kokkos::initialize(settings);
}
KokkosSession::~KokkosSession() { Kokkos::finalize(); }

bool is_host_build() { return false; }

VisibleGpus visible_gpus() {
  int count = 0, driver = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();                    // forgotten
  if (status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
    return {{}, text_of("the NVIDIA driver is too old: it is one for CUDA ", version_text(driver), ", and this build needs CUDA ", version_text(CUDART_VERSION),
                        ". Update the driver, or build lockstep with an older CUDA toolkit.")};
  if (status != cudaSuccess && status != cudaErrorNoDevice && status != cudaErrorInsufficientDriver)
    return {{}, text_of("CUDA finds no GPU that works: ", cudaGetErrorString(status), ". See nvidia-smi on this host.")};
  if (count == 0)
    return {{}, "no GPU is visible to this process, and this build needs one. Ask the job for GPUs (--gpus-per-node), check CUDA_VISIBLE_DEVICES "
                "and nvidia-smi, or use the CPU build (build/cpu/lockstep)."};
  VisibleGpus gpus;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    std::array<char, 32> place{};
    check_cuda(cudaDeviceGetPCIBusId(place.data(), static_cast<int>(place.size()), ordinal));
    gpus.places.emplace_back(place.data());
  }
  return gpus;
}

Device::Device(bool plans_only) : state_(std::make_unique<State>()), plans_only_(plans_only) {
  if (plans_only) return;
  int ordinal = 0, least = 0, greatest = 0;
  check_cuda(cudaGetDevice(&ordinal));
  check_cuda(cudaGetDeviceProperties(&state_->properties, ordinal));
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (std::size_t i = 0; i < 3; ++i) {
    state_->streams[i] = make_stream(i == index_of(StreamId::comm) ? least : greatest);
    state_->spaces.emplace_back(state_->streams[i].get());
  }
}
Device::~Device() {
  if (plans_only_) return;
  cudaDeviceSynchronize();
  state_->spaces.clear();
}

bool Device::is_host() const { return false; }
std::string Device::name() const { return state_->properties.name; }
int Device::concurrency() const { return state_->properties.multiProcessorCount; }
std::size_t Device::memory_bytes() const { return state_->properties.totalGlobalMem; }
std::size_t Device::free_bytes() const {
  std::size_t free = 0, total = 0;
  if (!plans_only_) check_cuda(cudaMemGetInfo(&free, &total));
  if (limit_bytes_ == 0) return free;
  const std::size_t within = limit_bytes_ - std::min(limit_bytes_, allocated_bytes());
  return plans_only_ ? within : std::min(free, within);
}
std::size_t Device::allocated_bytes() const { return state_->allocated->load(); }

Allocation Device::allocate(std::size_t bytes) {
  const std::size_t rounded = (bytes + 255) / 256 * 256;
  if (rounded == 0) return {};
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, rounded);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail("the GPU has ", free_bytes() >> 20, " of ", memory_bytes() >> 20, " MiB free, and ", rounded >> 20,
         " MiB more are needed. Lower data.global_batch, or raise data.micro_batches.");
  }
  check_cuda(status);
  // The streams do not wait for the one that cudaMemset uses: a large array's zeros would come after what is then copied into a small one.
  check_cuda(cudaMemset(data, 0, rounded));
  check_cuda(cudaStreamSynchronize(cudaStreamLegacy));
  auto allocated = state_->allocated;
  allocated->fetch_add(rounded);
  return Allocation(data, bytes, [allocated, rounded](void* p) {
    cudaFree(p);
    allocated->fetch_sub(rounded);
  });
}

Allocation Device::allocate_pinned(std::size_t bytes) {
  if (bytes == 0) return {};
  void* data = nullptr;
  check_cuda(cudaMallocHost(&data, bytes));
  return Allocation(data, bytes, [](void* p) { cudaFreeHost(p); });
}

void Device::copy_to_device(void* device, const void* host, std::size_t bytes, StreamId stream) {
  if (bytes > 0) check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, state_->streams[index_of(stream)].get()));
}
void Device::copy_to_host(void* host, const void* device, std::size_t bytes) {
  wait();
  if (bytes > 0) check_cuda(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}
void Device::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, state_->streams[index_of(state_->stream)].get()));
}
void Device::zero(void* device, std::size_t bytes) {
  if (bytes > 0) check_cuda(cudaMemsetAsync(device, 0, bytes, state_->streams[index_of(state_->stream)].get()));
}

void Device::use(StreamId stream) { state_->stream = stream; }
StreamId Device::current() const { return state_->stream; }

void Device::join(StreamId waits, StreamId on) {
  if (waits == on) return;
  // Events of captured joins live as long as the device; eager ones are taken from the front once there are many.
  if (state_->events.size() < 64 || state_->is_recording) {
    state_->events.push_back(make_event());
  } else {
    state_->events.push_back(std::move(state_->events.front()));
    state_->events.pop_front();
  }
  cudaEvent_t event = state_->events.back().get();
  check_cuda(cudaEventRecord(event, state_->streams[index_of(on)].get()));
  check_cuda(cudaStreamWaitEvent(state_->streams[index_of(waits)].get(), event, 0));
}

void* Device::native_stream(StreamId stream) const { return state_->streams[index_of(stream)].get(); }
void Device::wait() {
  for (const Stream& stream : state_->streams) check_cuda(cudaStreamSynchronize(stream.get()));
}

std::unique_ptr<Replay> Device::record(std::function<void()> fn, bool recordable) {
  if (!recordable) return std::make_unique<FunctionReplay>(std::move(fn));
  fn();
  wait();
  cudaStream_t stream = state_->streams[index_of(StreamId::compute)].get();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  state_->is_recording = true;
  try {
    fn();
  } catch (...) {                        // what went wrong is told, not that freeing memory is forbidden while a stream is captured
    cudaStreamEndCapture(stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  state_->is_recording = false;
  check_cuda(cudaStreamEndCapture(stream, &graph));
  join_memsets(graph);
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(status);
  return std::make_unique<GraphReplay>(Executable(executable), stream);
}

const ExecutionSpace& execution_space(const Device& device) { return device.state().spaces[index_of(device.state().stream)]; }

struct Flight::State {
  Device& device;
  std::deque<Event> done;
};
Flight::Flight(Device& device) : state_(new State{device, {}}) {}
Flight::~Flight() = default;
void Flight::limit(int steps) {
  Event event = make_event();
  check_cuda(cudaEventRecord(event.get(), static_cast<cudaStream_t>(state_->device.native_stream(StreamId::compute))));
  state_->done.push_back(std::move(event));
  while (static_cast<int>(state_->done.size()) > steps) {
    check_cuda(cudaEventSynchronize(state_->done.front().get()));
    state_->done.pop_front();
  }
}

struct Timeline::State {
  Device& device;
  std::vector<std::string> labels;
  std::vector<Event> events;             // one more than labels
  void record() {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreate(&event));
    events.emplace_back(event);
    check_cuda(cudaEventRecord(event, static_cast<cudaStream_t>(device.native_stream(StreamId::compute))));
  }
};
Timeline::Timeline(Device& device) : state_(new State{device, {}, {}}) { state_->record(); }
Timeline::~Timeline() = default;
void Timeline::mark(const std::string& label) {
  state_->record();
  state_->labels.push_back(label);
}
std::vector<std::pair<std::string, double>> Timeline::milliseconds() {
  state_->device.wait();
  std::vector<std::pair<std::string, double>> pieces;
  for (std::size_t i = 0; i < state_->labels.size(); ++i) {
    float took = 0;
    check_cuda(cudaEventElapsedTime(&took, state_->events[i].get(), state_->events[i + 1].get()));
    pieces.emplace_back(state_->labels[i], took);
  }
  return pieces;
}

ProfileRange::ProfileRange(const char* name) : is_open_(name) {
  if (is_open_) nvtxRangePushA(name);
}
ProfileRange::~ProfileRange() {
  if (is_open_) nvtxRangePop();
}

ProfilerCapture::ProfilerCapture(Device& device) : device_(device) {
  device_.wait();
  check_cuda(cudaProfilerStart());
}
ProfilerCapture::~ProfilerCapture() {
  cudaDeviceSynchronize();
  cudaProfilerStop();
}

double stopwatch_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep
