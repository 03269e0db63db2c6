// direct_stem: the forward direction of a net's first layer: images of 4 channels, few and large windows, 64 channels out, 16-bit factors, f32
// sums, by tensor cores.
// Blocks keep the weights in shared memory and take one tile after the other, some rows of an image's output, while what the next one reads is
// on its way.  A tile's pixels are one run in memory; a warp takes `units` times 16 of them and all channels.
#include <cuda_runtime.h>

#include <algorithm>

#include "backends/direct_launch.hpp"
#include "backends/direct_stem.hpp"

namespace lockstep {

/// Bytes of a channel's weights in shared memory: so that eight channels' packets lie in different banks.
__host__ __device__ constexpr int stem_weight_bytes(int taps, int steps) { return taps * steps * 32 + 16; }
/// The order of channels there: a lane's eight results of four products, 2 (lane % 4) and the next of each, are neighbours in memory.
__device__ inline int stem_weight_row(int channel) { return channel / 32 * 32 + channel % 8 / 2 * 8 + channel % 32 / 8 * 2 + channel % 2; }

template <int steps, class T>
__device__ void load_stem_weights(unsigned to, const T* weight, const StemArguments& a) {
  const int slots = steps * 4, skipped = a.pad % 2;          // pixels of a window's row
  for (int i = static_cast<int>(threadIdx.x); i < stem_k * a.taps * slots; i += static_cast<int>(blockDim.x)) {
    const int slot = i % slots, row = i / slots, channel = row / a.taps, r = row - channel * a.taps, s = slot - skipped;
    const bool is_tap = s >= 0 && s < a.taps;
    copy_async<8>(to + stem_weight_row(channel) * stem_weight_bytes(a.taps, steps) + (r * slots + slot) * 8, is_tap ? weight + (row * a.taps + s) * 4 : weight, is_tap);
  }
}

template <int units>
using StemSums = float[units][stem_k / 8][4];                // 16 pixels, 8 channels, as multiply_add has them

/// in: a lane's windows, which this moves; weight: its rows of the weights.
template <class T, int stride, int steps, int units>
__device__ void add_windows(StemSums<units>& sums, unsigned (&in)[units], unsigned weight, const StemArguments& a) {
  const unsigned sixteen = 16 * stem_weight_bytes(a.taps, steps);   // channels
  unsigned x[steps][units][4], w[4][4];                      // what comes next is loaded while products are summed
  const auto load_x = [&](int step) {
    #pragma unroll
    for (int u = 0; u < units; ++u) load_matrices<false>(x[step][u], in[u] + step * stem_step<stride>);
  };
  load_x(0);
  load_matrices<false>(w[0], weight), load_matrices<false>(w[1], weight + sixteen);
  for (int r = 0; r < a.taps; ++r, weight += steps * 32)
    #pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (step + 1 == steps)
        #pragma unroll
        for (int u = 0; u < units; ++u) in[u] += a.pitch;    // behind the last row: what is read there is not used
      load_x((step + 1) % steps);
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_matrices<false>(w[(i + 2) % 4], weight + (step + (i + 2) / 4) * 32 + (i + 2) % 4 * sixteen);
        #pragma unroll
        for (int u = 0; u < units; ++u)
          #pragma unroll
          for (int half = 0; half < 2; ++half) multiply_add<T>(sums[u][2 * i + half], x[step][u], w[i][2 * half], w[i][2 * half + 1]);
      }
    }
}

/// Two lanes so far apart share the sums of their first 2 `count` numbers: the upper one keeps the upper half.
template <int count>
__device__ void share(float* v) {
  const bool is_upper = (threadIdx.x & count) != 0;
  #pragma unroll
  for (int i = 0; i < count; ++i) {
    const float mine = is_upper ? v[i + count] : v[i], other = is_upper ? v[i] : v[i + count];
    v[i] = mine + __shfl_xor_sync(~0u, other, count);
  }
}

/// Adds the sums over pixels of a lane's share of the channels, lane / 4 of eight: [2 channels][of y, of its square].  Spoils sums.
template <int units>
__device__ void add_stem_sums(float (&totals)[4], StemSums<units>& sums, int pixels) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (pixels < units * 16)
    #pragma unroll
    for (int i = 0; i < units * stem_k / 2; ++i) {
      float& y = sums[i / (stem_k / 2)][i / 4 % (stem_k / 8)][i % 4];
      if (i / (stem_k / 2) * 16 + i / 2 % 2 * 8 + lane / 4 >= pixels) y = 0;
    }
  float v[stem_k / 2];
  #pragma unroll
  for (int j = 0; j < stem_k / 8; ++j)
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0, squares = 0;
      #pragma unroll
      for (int u = 0; u < units; ++u)
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float y = sums[u][j][2 * half + i];
          sum += y, squares += y * y;
        }
      v[j * 4 + i * 2] = sum, v[j * 4 + i * 2 + 1] = squares;
    }
  share<16>(v), share<8>(v), share<4>(v);
  #pragma unroll
  for (int i = 0; i < 4; ++i) totals[i] += v[i];
}

template <class T, int stride, int steps, int units>
__global__ void __launch_bounds__(units == 2 ? 448 : 256) direct_stem(const StemArguments a) {
  extern __shared__ float4 memory[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, warps = static_cast<int>(blockDim.x) / 32;
  const int buffer_bytes = a.in_rows * a.pitch, first_tile = static_cast<int>(blockIdx.x);
  const unsigned buffers = shared_address(memory), weights = buffers + 2 * buffer_bytes;
  const unsigned weight = weights + (lane % 8 + lane / 16 * 8) * stem_weight_bytes(a.taps, steps) + lane / 8 % 2 * 16, in_lane = stem_lane<stride>(a, lane);
  const auto load = [&](int tile, int buffer) {
    load_stem_rows<stride>(buffers + buffer * buffer_bytes, static_cast<const T*>(a.x), a, tile / a.bands, tile % a.bands * a.rows, 0);
    close_copies();
  };
  take_turn_in_stream();
  load_stem_weights<steps>(weights, static_cast<const T*>(a.factor), a);
  load(first_tile, 0);
  float totals[4] = {};
  int buffer = 0;
  for (int tile = first_tile; tile < a.tiles; tile += static_cast<int>(gridDim.x), buffer ^= 1) {
    wait_for_copies<0>();
    __syncthreads();                                         // all have read the other buffer
    if (const int next = tile + static_cast<int>(gridDim.x); next < a.tiles) load(next, buffer ^ 1);
    const int image = tile / a.bands, row = tile % a.bands * a.rows, pixels = min(a.rows, a.p - row) * a.q;
    T* const out = static_cast<T*>(a.y) + (static_cast<std::int64_t>(image) * a.p + row) * a.q * stem_k + lane % 4 * 8;
    for (int first = warp * units * 16; first < pixels; first += warps * units * 16) {
      unsigned in[units];
      #pragma unroll
      for (int u = 0; u < units; ++u) {
        const int pixel = min(first + u * 16 + lane % 16, pixels - 1), out_row = pixel / a.q;   // those behind the last are computed in vain
        in[u] = buffers + buffer * buffer_bytes + out_row * stride * a.pitch + (pixel - out_row * a.q) * 16 + in_lane;
      }
      StemSums<units> sums = {};
      add_windows<T, stride, steps, units>(sums, in, weight, a);
      #pragma unroll
      for (int u = 0; u < units; ++u)
        #pragma unroll
        for (int half = 0; half < 2; ++half)
          if (const int pixel = first + u * 16 + half * 8 + lane / 4; pixel < pixels)
            #pragma unroll
            for (int i = 0; i < stem_k / 32; ++i) {
              const auto two = [&](int j) { return packed<T>(sums[u][4 * i + j][2 * half], sums[u][4 * i + j][2 * half + 1]); };
              *reinterpret_cast<uint4*>(out + static_cast<std::int64_t>(pixel) * stem_k + i * 32) = uint4{two(0), two(1), two(2), two(3)};
            }
      if (a.sums) add_stem_sums<units>(totals, sums, pixels - first);
    }
  }
  if (!a.sums) return;

  // The block's sums, of its warps'.
  __syncthreads();
  float* const all = reinterpret_cast<float*>(memory);       // [warps, 2, k]
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int j = lane / 4, channel = j / 4 * 32 + lane % 4 * 8 + j % 4 * 2 + i / 2;
    all[(warp * 2 + i % 2) * stem_k + channel] = totals[i];
  }
  __syncthreads();
  if (thread >= 2 * stem_k) return;
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += all[i * 2 * stem_k + thread];
  a.sums[static_cast<std::int64_t>(blockIdx.x) * 2 * stem_k + thread] = sum;
}

namespace {

struct StemKernel {
  const void* function = nullptr;
  int units = 1, most_warps = 8;
};
template <class T, int stride, int steps>
std::vector<StemKernel> kernels_for() {
  return {{reinterpret_cast<const void*>(direct_stem<T, stride, steps, 4>), 4, 8}, {reinterpret_cast<const void*>(direct_stem<T, stride, steps, 2>), 2, 14}};
}
template <class T>
std::vector<StemKernel> kernels_for(const ConvProblem& p, int steps) {
  if (p.stride == 2) return steps == 2 ? kernels_for<T, 2, 2>() : kernels_for<T, 2, 3>();
  return steps == 2 ? kernels_for<T, 4, 2>() : kernels_for<T, 4, 3>();
}

std::size_t memory_bytes(const StemArguments& a, int warps) {
  const std::size_t weights = static_cast<std::size_t>(stem_k) * stem_weight_bytes(a.taps, a.steps()) + 64;   // 64: read in vain
  return std::max(2 * static_cast<std::size_t>(a.in_rows) * a.pitch + weights, static_cast<std::size_t>(warps) * 2 * stem_k * sizeof(float));
}

}  // namespace

std::vector<DirectWay> direct_stem_ways(const PlanRequest& request, const GpuLimits& limits) {
  const ConvProblem& p = request.problem;
  const int stride = static_cast<int>(p.stride);
  StemArguments a = stem_arguments(p);
  std::vector<DirectWay> ways;
  for (const StemKernel& kernel : p.dtype == DType::f16 ? kernels_for<f16>(p, a.steps()) : kernels_for<bf16>(p, a.steps())) {
    cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(limits.block_memory));
    for (const int warps : {4, 7, 8, 14})
      for (int rows = 1; rows <= 16 && (rows == 1 || rows / 2 < a.p); rows *= 2) {
        set_tile(a, stride, std::min(rows, a.p), a.q);
        const std::size_t memory = memory_bytes(a, warps);
        const int resident = warps <= kernel.most_warps ? resident_blocks(kernel.function, warps * 32, memory, limits) : 0;
        if (resident == 0) continue;
        const int blocks = std::min({a.tiles, limits.multiprocessors * resident, most_sum_parts}), each = divided_up(a.tiles, blocks);
        // Of a warp's 16 `units` pixels: how long a multiprocessor is busy with reading matrices or products, and how long they take alone.
        const int steps = a.taps * a.steps(), turns = divided_up(a.rows * a.q, 16 * kernel.units), rounds = divided_up(turns, warps);
        const double busy = std::max(4.0 * (kernel.units + 4), 6.4 * kernel.units) * steps + 100, alone = (40 + 26.0 * kernel.units) * steps + 400;
        const double copies = static_cast<double>(a.in_rows) * a.pitch / 64;
        const bool is_early = may_launch_early(kernel.function), writes_sums = request.sums;
        ways.push_back({.name = text_of("direct stem rows=", a.rows, " units=", kernel.units, " warps=", warps),
                        .sum_parts = blocks,
                        .cost = each * std::max(resident * (turns * busy + copies), rounds * alone + 500),
                        .start = [=](void* stream, const PlanOperands& o) {
                          StemArguments b = a;
                          b.x = o.x, b.factor = o.weight, b.y = o.y, b.sums = writes_sums ? o.sums : nullptr;
                          start_kernel(kernel.function, static_cast<unsigned>(blocks), static_cast<unsigned>(warps) * 32, memory, stream, b, is_early);
                        }});
      }
  }
  return ways;
}

}  // namespace lockstep
