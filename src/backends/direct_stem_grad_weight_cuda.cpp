// direct_stem_grad_weight: the gradient of the weights of a net's first layer: sums over all pixels of products of grad_y and windows of x.
// 16-bit factors, f32 sums, by tensor cores.
// Blocks take one tile of the output's gradient after the other, while the next one is on its way.  A warp computes all kernel rows of 16
// channels and some columns of the windows: from four rows of 16 pixels at a time, of which it loads each row of windows once.  Warps that share
// these take such pieces by turns; their sums meet in shared memory, the blocks' in a second kernel, always in one order.
#include <cuda_runtime.h>

#include <algorithm>

#include "backends/direct_launch.hpp"
#include "backends/direct_splits.hpp"
#include "backends/direct_stem.hpp"

namespace lockstep {
namespace {

constexpr int piece_rows = 4, pixel_bytes = stem_k * 2 + 16, slices = stem_k / 16;   // padded, so that eight pixels lie in different banks

/// The kinds of kernels.
template <int stride_, int taps_>
struct Stem {
  static constexpr int stride = stride_, taps = taps_, steps = (taps + 1 + 3) / 4;
  static constexpr int width = steps == 2 ? 2 : 1;           // a warp's, in steps of 16 columns
  static constexpr int units = slices * (steps / width);     // warps that make up all of the gradient
  static constexpr int in_rows = (piece_rows - 1) * stride + taps;
  static constexpr int sums = taps * width * 2 * 4, unit_size = sums * 32;
};

}  // namespace

template <class T, int stride>
__device__ void load_stem_tile(unsigned x_to, unsigned y_to, const StemArguments& a, int tile) {
  const int part = tile % a.parts, band = tile / a.parts % a.bands, image = tile / a.parts / a.bands;
  load_stem_rows<stride>(x_to, static_cast<const T*>(a.x), a, image, band * a.rows, part * a.columns);
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32, strips = a.columns / 16;
  const T* const y = static_cast<const T*>(a.factor) + static_cast<std::int64_t>(image) * a.p * a.q * stem_k + lane % 8 * 8;
  for (int line = static_cast<int>(threadIdx.x) / 32; line < a.rows * strips; line += warps) {
    const int row = line / strips, p = band * a.rows + row, first = part * a.columns + (line - row * strips) * 16 + lane / 8;
    const unsigned to = y_to + (line * 16 + lane / 8) * pixel_bytes + lane % 8 * 16;
    #pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const bool is_inside = p < a.p && first + i < a.q;
      copy_async<16>(to + i * pixel_bytes, is_inside ? y + (static_cast<std::int64_t>(p) * a.q + first + i) * stem_k : y, is_inside);
    }
  }
  close_copies();
}

template <class S>
using StemGradSums = float[S::taps][S::width][2][4];         // kernel row, step, 8 columns of it, as multiply_add has them

/// x, y: a lane's rows of matrices of 16 pixels.
template <class T, class S>
__device__ void add_piece(StemGradSums<S>& sums, unsigned x, int x_row, unsigned y, int y_row) {
  unsigned windows[2][S::width][4], g[piece_rows][4];
  const auto load = [&](unsigned (&to)[S::width][4], unsigned from) {
    #pragma unroll
    for (int i = 0; i < S::width; ++i) load_matrices<true>(to[i], from + i * stem_step<S::stride>);
  };
  load(windows[0], x), load_matrices<true>(g[0], y);
  #pragma unroll
  for (int row = 0; row < S::in_rows; ++row) {
    if (const int next = row + 1; next < S::in_rows) {
      load(windows[next % 2], x + next * x_row);
      if (next % S::stride == 0 && next / S::stride < piece_rows) load_matrices<true>(g[next / S::stride], y + next / S::stride * y_row);
    }
    #pragma unroll
    for (int p = 0; p < piece_rows; ++p)
      if (const int r = row - p * S::stride; r >= 0 && r < S::taps)
        #pragma unroll
        for (int i = 0; i < S::width; ++i)
          #pragma unroll
          for (int half = 0; half < 2; ++half) multiply_add<T>(sums[r][i][half], g[p], windows[row % 2][i][2 * half], windows[row % 2][i][2 * half + 1]);
  }
}

template <class T, class S>
__global__ void __launch_bounds__(384) direct_stem_grad_weight(const StemArguments a) {
  extern __shared__ float4 memory[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, groups = static_cast<int>(blockDim.x) / 32 / S::units;
  const int group = warp / S::units, unit = warp % S::units, slice = unit % slices, column = unit / slices * S::width;
  const int x_bytes = a.in_rows * a.pitch, y_row = a.columns * pixel_bytes, buffer_bytes = x_bytes + a.rows * y_row, first_tile = static_cast<int>(blockIdx.x);
  const unsigned buffers = shared_address(memory);
  const unsigned x_lane = lane % 16 * 16 + stem_lane<S::stride>(a, lane) + column * stem_step<S::stride>;
  const unsigned y_lane = x_bytes + (lane % 8 + lane / 16 * 8) * pixel_bytes + slice * 32 + lane / 8 % 2 * 16;
  const auto load = [&](int tile, int buffer) {
    const unsigned to = buffers + buffer * buffer_bytes;
    load_stem_tile<T, S::stride>(to, to + x_bytes, a, tile);
  };
  take_turn_in_stream();
  load(first_tile, 0);
  StemGradSums<S> sums = {};
  int buffer = 0;
  for (int tile = first_tile; tile < a.tiles; tile += static_cast<int>(gridDim.x), buffer ^= 1) {
    wait_for_copies<0>();
    __syncthreads();                                         // all have read the other buffer
    if (const int next = tile + static_cast<int>(gridDim.x); next < a.tiles) load(next, buffer ^ 1);
    const int strips = a.columns / 16;
    for (int piece = group; piece < a.rows / piece_rows * strips; piece += groups) {
      const int band = piece / strips, strip = piece - band * strips;
      const unsigned from = buffers + buffer * buffer_bytes;
      add_piece<T, S>(sums, from + x_lane + band * piece_rows * S::stride * a.pitch + strip * 256, a.pitch,
                      from + y_lane + band * piece_rows * y_row + strip * 16 * pixel_bytes, y_row);
    }
  }

  // The groups' sums, register by register.
  __syncthreads();
  float* const all = reinterpret_cast<float*>(memory) + unit * S::unit_size + lane;
  const auto sum_at = [&](int i) -> float& { return sums[i / (8 * S::width)][i / 8 % S::width][i / 4 % 2][i % 4]; };
  #pragma unroll
  for (int i = 0; i < S::sums; ++i)
    if (group > 0) all[(group - 1) * S::units * S::unit_size + i * 32] = sum_at(i);
  __syncthreads();
  if (group > 0) return;
  float* const to = a.sums + (static_cast<std::int64_t>(blockIdx.x) * S::units + unit) * S::unit_size + lane;
  #pragma unroll
  for (int i = 0; i < S::sums; ++i) {
    float sum = sum_at(i);
    for (int other = 0; other + 1 < groups; ++other) sum += all[other * S::units * S::unit_size + i * 32];
    to[i * 32] = sum;
  }
}

struct StemEnd {
  const float* partial = nullptr;
  void* grad_weight = nullptr;
  int splits = 0, skipped = 0;                               // skipped: pixels of a window before its first tap
};

template <class T, class S>
__global__ void __launch_bounds__(256) direct_stem_grad_weight_end(const StemEnd a) {
  constexpr int unit_quads = S::unit_size / 4;
  const int first = static_cast<int>(blockIdx.x) * split_quads, quad = first + static_cast<int>(threadIdx.x);
  take_turn_in_stream();
  const float4 sum = add_splits(a.partial, a.splits, S::units * unit_quads, first);
  if (threadIdx.x >= split_quads) return;
  const int unit = quad / unit_quads, at = quad % unit_quads * 4, i = at / 32, first_lane = at % 32;   // four lanes' register i
  const int r = i / (8 * S::width), k = unit % slices * 16 + i % 4 / 2 * 8 + first_lane / 4;
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
  #pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
    const int column = (unit / slices * S::width + i / 8 % S::width) * 16 + i / 4 % 2 * 8 + lane * 2 + i % 2, s = column / 4 - a.skipped;
    if (s >= 0 && s < S::taps) static_cast<T*>(a.grad_weight)[((k * S::taps + r) * S::taps + s) * 4 + column % 4] = T(values[lane]);
  }
}

namespace {

struct StemGradKernel {
  const void *function = nullptr, *end = nullptr;
  int units = 0, unit_size = 0;
};
template <class T, class S>
StemGradKernel grad_kernel() {
  return {reinterpret_cast<const void*>(direct_stem_grad_weight<T, S>), reinterpret_cast<const void*>(direct_stem_grad_weight_end<T, S>), S::units, S::unit_size};
}
template <class T, int stride>
StemGradKernel kernel_for(std::int64_t taps) {
  return taps == 5 ? grad_kernel<T, Stem<stride, 5>>() : taps == 7 ? grad_kernel<T, Stem<stride, 7>>() : taps == 9 ? grad_kernel<T, Stem<stride, 9>>() : grad_kernel<T, Stem<stride, 11>>();
}
template <class T>
StemGradKernel kernel_for(const ConvProblem& p) { return p.stride == 2 ? kernel_for<T, 2>(p.r) : kernel_for<T, 4>(p.r); }

}  // namespace

std::vector<DirectWay> direct_stem_grad_weight_ways(const PlanRequest& request, const GpuLimits& limits) {
  const ConvProblem& p = request.problem;
  const StemGradKernel kernel = p.dtype == DType::f16 ? kernel_for<f16>(p) : kernel_for<bf16>(p);
  cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(limits.block_memory));
  StemArguments a = stem_arguments(p);
  const int strips = divided_up(a.q, 16);
  std::vector<DirectWay> ways;
  for (int parts = 1, last = 0; parts <= 8; parts *= 2) {
    const int columns = divided_up(strips, parts) * 16;
    if (columns == last) break;
    last = columns;
    for (const int rows : {piece_rows, 2 * piece_rows})
      for (const int groups : {1, 2, 3}) {
        set_tile(a, static_cast<int>(p.stride), rows, columns);
        const int warps = kernel.units * groups, pieces = rows / piece_rows * (columns / 16), rounds = divided_up(pieces, groups);
        const std::size_t loaded = static_cast<std::size_t>(a.in_rows) * a.pitch + static_cast<std::size_t>(rows) * columns * pixel_bytes;
        const std::size_t memory = std::max(2 * loaded, static_cast<std::size_t>(groups - 1) * kernel.units * kernel.unit_size * sizeof(float));
        const int resident = warps <= 12 && groups <= pieces && (rows == piece_rows || rows <= a.p + piece_rows - 1) ? resident_blocks(kernel.function, warps * 32, memory, limits) : 0;
        if (resident == 0) continue;
        const int blocks = std::min(a.tiles, limits.multiprocessors * resident), each = divided_up(a.tiles, blocks), quads = kernel.units * kernel.unit_size / 4;
        // Of a warp's piece: products, how long a multiprocessor is busy with them, and how long they take alone.
        const double products = piece_rows * kernel.unit_size / 128.0, busy = 1.2 * products, alone = 5.5 * products;
        const bool is_early = may_launch_early(kernel.function);
        ways.push_back({.name = text_of("direct stem rows=", rows, " columns=", columns, " groups=", groups),
                        .workspace_bytes = static_cast<std::size_t>(blocks) * quads * sizeof(float4),
                        .cost = each * std::max(resident * (pieces * kernel.units * busy + static_cast<double>(loaded) / 32), rounds * alone + 500) + 8.0 * blocks * quads / limits.multiprocessors,
                        .start = [=](void* stream, const PlanOperands& o) {
                          StemArguments b = a;
                          b.x = o.x, b.factor = o.y, b.sums = static_cast<float*>(o.workspace);
                          StemEnd end{static_cast<const float*>(o.workspace), o.weight, blocks, a.pad % 2};
                          const auto u = [](int value) { return static_cast<unsigned>(value); };
                          start_kernel(kernel.function, u(blocks), u(warps) * 32, memory, stream, b, is_early);
                          start_kernel(kernel.end, u(quads / split_quads), u(threads_for_splits(blocks)), 0, stream, end, is_early);
                        }});
      }
  }
  return ways;
}

}  // namespace lockstep
