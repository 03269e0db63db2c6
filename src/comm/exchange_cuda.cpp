// exchange_cuda: GPUs of one host write their values into each other's memory and add what came: one small kernel a sum, 106 of them a step of
// ResNet-50, where NCCL's all-reduce takes several times as long.
// In: f32 [count] of each rank.  Out: their sum, in place, added in rank order: equal bits on all ranks and in all runs.
//
// Each rank has slots, [2 buffers][rank that writes][line], which the others map (CUDA IPC).  A line is 16 bytes, {value, epoch, value, epoch}, stored
// and loaded at once: each half's 8 bytes arrive together, so a value that stands beside the awaited epoch is that call's, and nothing else
// (no fence, flag or barrier) says so.  NCCL's LL protocol relies on the same.
//
// Epochs: call number e of a block writes to buffer e % 2.  Two buffers suffice: a rank that writes e + 2 over e has ended its call e + 1, for which it
// waited for lines of e + 1 from every rank; each sent them after its own call e had ended (one stream), so it had read all of e.  A block counts
// its own calls, in device memory, so that a replayed graph goes on counting; a line belongs to one block, so that blocks that a short
// call leaves out do not matter.  Memory starts as zeros and no epoch is 0.  After 2^32 - 1 comes 2, of the other parity: a line that had not
// been written for 2^32 calls of its block could then be taken for a new one; each net writes all its lines in every few dozen.
//
// A block waits for the same block of the others, so all blocks must run at once: at most 8, on any GPU that has 8 multiprocessors.  One that
// waits for a dead rank spins until its process ends: the watchdog, or the launcher, sees to that.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string_view>

#include "comm/exchange.hpp"
#include "tensor/cuda_check.hpp"

namespace lockstep {
namespace {

constexpr int most_blocks = 8, most_threads = 512, most_ranks = 16;
constexpr std::size_t share_bytes = std::size_t{2} << 20;   // IPC shares whole pages of this size: no other allocation should lie in ours

/// For what may fail: then there is another way.
bool succeeds(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();            // forgotten
  return status == cudaSuccess;
}

using Line = uint4;
struct Slots {
  Line* of_rank[most_ranks];                                // each rank's, as mapped here
};
/// How a group's slots are cut.
struct Cut {
  int ranks, me, lines, lines_of_block;
  __host__ __device__ Line* slot(Line* slots, unsigned buffer, int writer) const { return slots + (static_cast<std::int64_t>(buffer) * ranks + writer) * lines; }
};

__device__ void store(Line* to, float a, float b, unsigned epoch) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(__float_as_uint(a)), "r"(epoch), "r"(__float_as_uint(b)), "r"(epoch) : "memory");
}
__device__ Line load(const Line* from) {
  Line line;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(line.x), "=r"(line.y), "=r"(line.z), "=r"(line.w) : "l"(from) : "memory");
  return line;
}

/// width >= ranks: registers for all ranks' lines, so that their loads are under way together.
template <int width>
__global__ void __launch_bounds__(most_threads) exchange_sum(const __grid_constant__ Slots slots, const Cut cut, float* values, int count, unsigned* epochs) {
  const unsigned before = epochs[blockIdx.x], epoch = before == ~0u ? 2 : before + 1, buffer = epoch % 2;
  const int begin = static_cast<int>(blockIdx.x) * cut.lines_of_block, end = min(begin + cut.lines_of_block, (count + 1) / 2);
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x)) {
    const bool is_pair = 2 * i + 1 < count;
    const float a = values[2 * i], b = is_pair ? values[2 * i + 1] : 0;
#pragma unroll
    for (int r = 0; r < width; ++r)
      if (r < cut.ranks && r != cut.me) store(cut.slot(slots.of_rank[r], buffer, cut.me) + i, a, b, epoch);
    Line lines[width];
    bool is_here;
    do {
      is_here = true;
#pragma unroll
      for (int r = 0; r < width; ++r)
        if (r < cut.ranks && r != cut.me) lines[r] = load(cut.slot(slots.of_rank[cut.me], buffer, r) + i);
#pragma unroll
      for (int r = 0; r < width; ++r)
        if (r < cut.ranks && r != cut.me) is_here = is_here && lines[r].y == epoch && lines[r].w == epoch;
    } while (!is_here);
    float sum_a = 0, sum_b = 0;
#pragma unroll
    for (int r = 0; r < width; ++r) {
      if (r >= cut.ranks) continue;
      const float of_a = r == cut.me ? a : __uint_as_float(lines[r].x), of_b = r == cut.me ? b : __uint_as_float(lines[r].z);
      sum_a = r == 0 ? of_a : sum_a + of_a, sum_b = r == 0 ? of_b : sum_b + of_b;
    }
    values[2 * i] = sum_a;
    if (is_pair) values[2 * i + 1] = sum_b;
  }
  __syncthreads();                                          // all threads have read the old count
  if (threadIdx.x == 0) epochs[blockIdx.x] = epoch;
}

/// What a rank writes to see whether it reaches the others.
__global__ void exchange_trial(const __grid_constant__ Slots slots, const Cut cut) {
  const int r = static_cast<int>(threadIdx.x);
  if (r != cut.me) store(cut.slot(slots.of_rank[r], 0, cut.me), static_cast<float>(cut.me + 1), static_cast<float>(-cut.me - 1), 1);
}

/// NCCL's variables by which a user says that GPUs do not reach each other here.
bool is_forbidden() {
  const char *disable = std::getenv("NCCL_P2P_DISABLE"), *level = std::getenv("NCCL_P2P_LEVEL");
  const std::string_view far = level ? level : "";
  return (disable && std::atoi(disable) != 0) || far == "LOC" || far == "0";
}

class DirectExchange final : public Exchange {
 public:
  /// Maps the slots of the others, as far as that works; collective.
  DirectExchange(Device& device, Communicator& group, std::int64_t max_elements) : ranks_(group), max_elements_(max_elements) {
    const std::int64_t lines = (max_elements + 1) / 2, lines_of_block = std::max<std::int64_t>((lines + most_blocks - 1) / most_blocks, 1);
    cut_ = {.ranks = group.size(), .me = group.rank(), .lines = static_cast<int>(lines), .lines_of_block = static_cast<int>(lines_of_block)};
    const std::size_t bytes = static_cast<std::size_t>(2 * cut_.ranks) * static_cast<std::size_t>(lines) * sizeof(Line);
    memory_ = device.allocate((bytes + share_bytes - 1) / share_bytes * share_bytes);
    epochs_ = device.allocate(most_blocks * sizeof(unsigned));
    check_cuda(cudaDeviceSynchronize());                         // the zeros are there before the others know the address
    is_usable_ = agree(map()) && agree(reaches_all());
  }

  ~DirectExchange() override {
    if (std::uncaught_exceptions() > exceptions_) return;   // the others do not come; their memory stays mapped until the job is ended
    try {
      cudaDeviceSynchronize();
      ranks_.barrier();                                     // nobody writes any more
      for (void* slots : mapped_) cudaIpcCloseMemHandle(slots);
      ranks_.barrier();                                     // nobody has this rank's memory mapped: it may be freed
    } catch (const std::exception&) {                       // MPI is lost: the job ends anyway
    }
  }

  bool is_usable() const { return is_usable_; }
  void take(std::unique_ptr<Communicator> group) { owned_ = std::move(group); }

  void sum(Device& device, Tensor values) override {
    require_fits(values, max_elements_);
    const int count = static_cast<int>(values.size()), lines = (count + 1) / 2;
    if (count == 0) return;
    const int blocks = (lines + cut_.lines_of_block - 1) / cut_.lines_of_block, of_block = std::min(lines, cut_.lines_of_block);
    const int threads = std::min((of_block + 31) / 32 * 32, most_threads);
    const auto kernel = cut_.ranks <= 2 ? exchange_sum<2> : cut_.ranks <= 4 ? exchange_sum<4> : cut_.ranks <= 8 ? exchange_sum<8> : exchange_sum<most_ranks>;
    kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, static_cast<cudaStream_t>(device.native_stream(StreamId::compute))>>>(
        slots_, cut_, values.as<float>(), count, static_cast<unsigned*>(epochs_.data()));
    check_cuda(cudaGetLastError());
  }
  bool is_recordable() const override { return true; }
  bool is_direct() const override { return true; }

 private:
  bool agree(bool holds) { return ranks_.min(holds ? 1 : 0) == 1; }

  /// What the others need to map a rank's slots; sent as it is.
  struct Address {
    cudaIpcMemHandle_t handle{};
    std::array<char, 32> place{};                           // of its GPU on the PCI bus
    int is_valid = 0;
  };

  bool map() {
    Address mine;
    int ordinal = 0;
    mine.is_valid = succeeds(cudaGetDevice(&ordinal)) && succeeds(cudaDeviceGetPCIBusId(mine.place.data(), static_cast<int>(mine.place.size()), ordinal)) &&
                    succeeds(cudaIpcGetMemHandle(&mine.handle, memory_.data()));
    std::string all;
    for (const std::string& text : ranks_.gather(std::string(reinterpret_cast<const char*>(&mine), sizeof mine))) all += text;
    all = ranks_.broadcast(all, 0);
    for (int r = 0; r < cut_.ranks; ++r) {
      Address other;
      std::memcpy(&other, all.data() + static_cast<std::size_t>(r) * sizeof other, sizeof other);
      if (!other.is_valid) return false;
      if (r == cut_.me) {
        slots_.of_rank[r] = static_cast<Line*>(memory_.data());
        continue;
      }
      if (other.place == mine.place) return false;          // on one GPU the two would take turns, and each wait for the other's
      // A GPU that this process does not see (one visible a task) cannot be asked about, but mapped.
      int peer = 0, can = 1;
      if (succeeds(cudaDeviceGetByPCIBusId(&peer, other.place.data()))) check_cuda(cudaDeviceCanAccessPeer(&can, ordinal, peer));
      void* slots = nullptr;
      if (!can || !succeeds(cudaIpcOpenMemHandle(&slots, other.handle, cudaIpcMemLazyEnablePeerAccess))) return false;
      mapped_.push_back(slots);
      slots_.of_rank[r] = static_cast<Line*>(slots);
    }
    return true;
  }

  /// Machines exist where the mapping succeeds and what is written is lost (IOMMU): then sums would wait for ever.
  bool reaches_all() {
    exchange_trial<<<1, static_cast<unsigned>(cut_.ranks)>>>(slots_, cut_);
    check_cuda(cudaGetLastError());
    check_cuda(cudaDeviceSynchronize());
    ranks_.barrier();
    bool has_all = true;
    for (int r = 0; r < cut_.ranks; ++r) {
      if (r == cut_.me) continue;
      float got[4];
      check_cuda(cudaMemcpy(got, cut_.slot(slots_.of_rank[cut_.me], 0, r), sizeof got, cudaMemcpyDeviceToHost));
      has_all = has_all && got[0] == static_cast<float>(r + 1) && got[2] == static_cast<float>(-r - 1);
    }
    check_cuda(cudaMemset(memory_.data(), 0, memory_.bytes()));
    check_cuda(cudaDeviceSynchronize());
    return has_all;                                         // the agreement that follows is a barrier: memory is zeroed before any sum
  }

  Communicator& ranks_;                                     // owned_, once it is usable
  std::unique_ptr<Communicator> owned_;
  std::int64_t max_elements_;
  Cut cut_{};
  Slots slots_{};
  Allocation memory_, epochs_;
  std::vector<void*> mapped_;
  bool is_usable_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

std::unique_ptr<Exchange> make_direct_exchange(Device& device, std::unique_ptr<Communicator>& group, std::int64_t max_elements) {
  const bool may = group->local_size() == group->size() && group->size() <= most_ranks && max_elements <= (1 << 24) && !is_forbidden();
  if (group->min(may ? 1 : 0) == 0) return nullptr;
  auto made = std::make_unique<DirectExchange>(device, *group, max_elements);
  if (!made->is_usable()) return nullptr;
  made->take(std::move(group));
  return made;
}

}  // namespace lockstep
