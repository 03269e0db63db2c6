// direct_grad_weight: the gradient of a 3x3 convolution's weights: sums over all pixels of products of grad_y and x.  16-bit factors, f32 sums,
// by tensor cores.
// A block computes all taps between 16 channels of x and 16 of grad_y over a few images, which it keeps in shared memory; its warps take
// strips of 16 columns (of images side by side) and some rows each.  Their sums meet in shared memory, the blocks' in a second kernel, always
// in one order.
#include <cuda_runtime.h>

#include <algorithm>

#include "backends/direct_kernels.hpp"
#include "backends/direct_launch.hpp"
#include "backends/direct_splits.hpp"
#include "backends/direct_tile.hpp"

namespace lockstep {
namespace {

struct GradWeightArguments {
  const void *x = nullptr, *grad_y = nullptr;
  void* grad_weight = nullptr;
  float* partial = nullptr;                        // [splits, units, sums of a unit in the order of the lanes' registers]
  int n = 0, h = 0, w = 0, c = 0, p = 0, q = 0, k = 0;
  int images = 1, rows = 1, row_groups = 1, column_tiles = 1, bands = 1, splits = 1;   // a tile: images, rows of grad_y; bands of such rows
};

constexpr int most_warps = 16, slice = 16, slice_bytes = padded_bytes(slice);

/// The kinds of kernels.  window: channels of x if these are few, else 0.
template <int stride_, int window_>
struct GradWeight {
  static constexpr int stride = stride_, window = window_;
  static constexpr int taps = window > 0 ? 1 : 3;                       // columns of taps that are apart in the tile
  static constexpr int sums = 3 * taps * 2 * 4;                         // registers of a lane
  static constexpr int unit_size = sums * 32;
  static constexpr int x_rows(int rows) { return stride == 1 ? rows + 2 : 2 * rows + 1; }
  static int line_pixels(const GradWeightArguments& a) { return window > 0 ? a.q : a.w + 2; }
  static std::size_t memory_bytes(const GradWeightArguments& a) {
    const std::size_t pixels = static_cast<std::size_t>(a.images) * (x_rows(a.rows) * line_pixels(a) + a.rows * a.q) + 3;
    return std::max(pixels * slice_bytes, static_cast<std::size_t>(a.row_groups) * a.column_tiles * unit_size * sizeof(float));
  }
};
/// Pieces of 16 channels that x has, or its windows.
constexpr int x_slices(int c) { return c == 4 ? 1 : c == 8 ? 2 : c / slice; }

}  // namespace

template <class G>
using GradWeightSums = float[3][G::taps][2][4];   // a warp's: tap row, tap column, 8 channels of x, as multiply_add has them

template <class T, class G>
__global__ void __launch_bounds__(most_warps * 32) direct_grad_weight(const GradWeightArguments a) {
  extern __shared__ float4 memory[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, warps = static_cast<int>(blockDim.x) / 32;
  const int row_group = warp / a.column_tiles, column_tile = warp % a.column_tiles;
  const int k_slice = static_cast<int>(blockIdx.y) % (a.k / slice), x_slice = static_cast<int>(blockIdx.y) / (a.k / slice);
  const int x_width = G::window > 0 ? a.q : a.w + 2, x_rows = G::x_rows(a.rows), x_row_bytes = a.images * x_width * slice_bytes, y_row_bytes = a.images * a.q * slice_bytes;
  const unsigned x_tile = shared_address(memory), y_tile = x_tile + x_rows * x_row_bytes, zeros = y_tile + a.rows * y_row_bytes;

  // A lane's rows of matrices, 16 pixels by 16 channels: of grad_y, its columns become rows of a product's left side; of x, of the right side.
  // Pixels behind the last one are zeros, in every row.
  const int group_rows = (a.rows + a.row_groups - 1) / a.row_groups, row_from = row_group * group_rows, row_to = min(a.rows, row_from + group_rows);
  const int y_at = column_tile * 16 + lane % 8 + lane / 16 * 8, x_at = column_tile * 16 + lane % 16, pixels = a.images * a.q;
  const bool has_y = y_at < pixels, has_x = x_at < pixels;
  const int y_step = has_y ? y_row_bytes : 0, x_step = has_x ? x_row_bytes * G::stride : 0, x_row = has_x ? x_row_bytes : 0;
  const int odd_columns = has_x && G::window == 0 ? (x_width + 1) / 2 * slice_bytes : 0;
  const unsigned y_first = (has_y ? y_tile + y_at * slice_bytes : zeros) + lane / 8 % 2 * 16 + row_from * y_step;
  const unsigned x_first = (has_x ? x_tile + (x_at / a.q * x_width + x_at % a.q) * slice_bytes : zeros) + lane / 16 * 16 + row_from * x_step;

  take_turn_in_stream();
  GradWeightSums<G> sums = {};
  const int tiles = (a.n + a.images - 1) / a.images * a.bands;
  for (int i = static_cast<int>(blockIdx.x); i < tiles; i += a.splits) {
    const int image = i / a.bands * a.images, first_row = i % a.bands * a.rows;
    if (i != static_cast<int>(blockIdx.x)) __syncthreads();   // all have read the tile before
    const TileSource<T> y{static_cast<const T*>(a.grad_y) + k_slice * slice, a.n, a.p, a.q, a.k, image, first_row};
    load_pixels<slice, 1, 0, 0>(y_tile, y, a.rows, a.images);
    if constexpr (G::window > 0) {
      const TileSource<T> x{static_cast<const T*>(a.x), a.n, a.h, a.w, a.c, image, first_row * G::stride - 1};
      load_windows<G::window, slice / G::window, G::stride>(x_tile, x, x_rows, a.images, a.q, x_slice * (slice / G::window));
    } else {
      const TileSource<T> x{static_cast<const T*>(a.x) + x_slice * slice, a.n, a.h, a.w, a.c, image, first_row * G::stride - 1};
      load_pixels<slice, G::stride, 1, 1>(x_tile, x, x_rows, a.images);
    }
    if (thread < 3 * slice_bytes / 16) store_zeros(zeros + thread * 16);
    close_copies();
    wait_for_copies<0>();
    __syncthreads();

    unsigned y_row = y_first, x_at_row = x_first;
    unsigned factors[3][G::taps][4];   // rows of x: that of tap row r is factors[(row + r) % 3], or with stride 2, factors[r]
    const auto load_row = [&](unsigned (&to)[G::taps][4], unsigned from) {
      #pragma unroll
      for (int s = 0; s < G::taps; ++s) load_matrices<true>(to[s], from + (G::stride == 1 ? s * slice_bytes : s == 1 ? odd_columns : s / 2 * slice_bytes));
    };
    const auto add_row = [&](int turn) {
      unsigned g[4];
      load_matrices<true>(g, y_row);
      #pragma unroll
      for (int r = 0; r < 3; ++r)
        #pragma unroll
        for (int s = 0; s < G::taps; ++s)
          #pragma unroll
          for (int half = 0; half < 2; ++half) {
            const auto& x = factors[(turn + r) % 3][s];
            multiply_add<T>(sums[r][s][half], g, x[2 * half], x[2 * half + 1]);
          }
      y_row += y_step, x_at_row += x_step;
    };
    if constexpr (G::stride == 1) {
      load_row(factors[0], x_at_row), load_row(factors[1], x_at_row + x_row);
      for (int row = row_from; row < row_to; row += 3)
        #pragma unroll
        for (int turn = 0; turn < 3; ++turn)
          if (row + turn < row_to) load_row(factors[(turn + 2) % 3], x_at_row + 2 * x_row), add_row(turn);
    } else {
      for (int row = row_from; row < row_to; ++row) {
        #pragma unroll
        for (int r = 0; r < 3; ++r) load_row(factors[r], x_at_row + r * x_row);
        add_row(0);
      }
    }
  }

  // The warps' sums, register by register.
  __syncthreads();
  float* const all = reinterpret_cast<float*>(memory);
  #pragma unroll
  for (int i = 0; i < G::sums; ++i) all[warp * G::unit_size + i * 32 + lane] = sums[i / (8 * G::taps)][i / 8 % G::taps][i / 4 % 2][i % 4];
  __syncthreads();
  float2* const partial = reinterpret_cast<float2*>(a.partial + (static_cast<std::int64_t>(blockIdx.x) * gridDim.y + blockIdx.y) * G::unit_size);
  for (int i = thread; i < G::unit_size / 2; i += static_cast<int>(blockDim.x)) {
    float2 sum{};
    #pragma unroll 8
    for (int k = 0; k < warps; ++k) {
      const float2 v = *reinterpret_cast<const float2*>(all + k * G::unit_size + 2 * i);
      sum.x += v.x, sum.y += v.y;
    }
    partial[i] = sum;
  }
}

template <class T, class G>
__global__ void __launch_bounds__(256) direct_grad_weight_end(const GradWeightArguments a) {
  const int units = a.k / slice * x_slices(a.c), first = static_cast<int>(blockIdx.x) * split_quads, quad = first + static_cast<int>(threadIdx.x);
  take_turn_in_stream();
  const float4 sum = add_splits(a.partial, a.splits, units * (G::unit_size / 4), first);
  if (threadIdx.x >= split_quads) return;
  const int unit = quad / (G::unit_size / 4), at = quad % (G::unit_size / 4) * 4, i = at / 32, first_lane = at % 32;   // four lanes' register i
  const int r = i / (8 * G::taps), k = unit % (a.k / slice) * slice + i % 4 / 2 * 8 + first_lane / 4;
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
  #pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
    const int channel = unit / (a.k / slice) * slice + i / 4 % 2 * 8 + lane * 2 + i % 2;   // of x, or of its windows
    const int s = G::window > 0 ? channel / a.c : i / 8 % G::taps, c = G::window > 0 ? channel % a.c : channel;
    if (s < 3) static_cast<T*>(a.grad_weight)[((k * 3 + r) * 3 + s) * a.c + c] = T(values[lane]);
  }
}

namespace {

struct GradWeightKernel {
  const void *function = nullptr, *end = nullptr;
  std::size_t (*memory_bytes)(const GradWeightArguments&) = nullptr;
  int unit_size = 0;
};
template <class T, class G>
GradWeightKernel grad_weight_kernel() {
  return {reinterpret_cast<const void*>(direct_grad_weight<T, G>), reinterpret_cast<const void*>(direct_grad_weight_end<T, G>), G::memory_bytes, G::unit_size};
}
template <class T, int stride>
GradWeightKernel kernel_for(std::int64_t c) {
  return c == 4 ? grad_weight_kernel<T, GradWeight<stride, 4>>() : c == 8 ? grad_weight_kernel<T, GradWeight<stride, 8>>() : grad_weight_kernel<T, GradWeight<stride, 0>>();
}
template <class T>
GradWeightKernel kernel_for(const ConvProblem& p) { return p.stride == 1 ? kernel_for<T, 1>(p.c) : kernel_for<T, 2>(p.c); }

DirectWay way_of(const GradWeightKernel& kernel, const GradWeightArguments& a, const GpuLimits& limits) {
  const int units = a.k / slice * x_slices(a.c), warps = a.row_groups * a.column_tiles, quads = units * kernel.unit_size / 4;
  const std::size_t memory = kernel.memory_bytes(a);
  const int tiles = divided_up(a.n, a.images) * a.bands, each = divided_up(divided_up(tiles, a.splits) * a.splits * units, limits.multiprocessors);
  const int resident = std::clamp(static_cast<int>(limits.multiprocessor_memory / (memory + 1024)), 1, std::max(1, most_warps / warps));
  const double products = kernel.unit_size / 128.0 * divided_up(a.rows, a.row_groups);   // a warp's, in a tile
  const double work = std::max(1.7 * products * warps, 12.0 * products / std::min(each, resident)) + 4.0 * kernel.unit_size * warps / 128;
  const bool is_early = may_launch_early(kernel.function);
  return {.name = text_of("direct rows=", a.rows, " images=", a.images, " groups=", a.row_groups, " splits=", a.splits),
          .workspace_bytes = static_cast<std::size_t>(a.splits) * units * kernel.unit_size * sizeof(float),
          .cost = 1000.0 * divided_up(each, resident) + each * (static_cast<double>(memory) / 48 + work) + 8.0 * a.splits * quads / limits.multiprocessors,
          .start = [=](void* stream, const PlanOperands& o) {
            GradWeightArguments b = a;
            b.x = o.x, b.grad_y = o.y, b.grad_weight = o.weight, b.partial = static_cast<float*>(o.workspace);
            const auto u = [](int value) { return static_cast<unsigned>(value); };
            start_kernel(kernel.function, dim3(u(a.splits), u(units)), u(warps) * 32, memory, stream, b, is_early);
            start_kernel(kernel.end, u(quads / split_quads), u(threads_for_splits(a.splits)), 0, stream, b, is_early);
          }};
}

}  // namespace

std::vector<DirectWay> direct_grad_weight_ways(const PlanRequest& request, const GpuLimits& limits) {
  const ConvProblem& p = request.problem;
  const GradWeightKernel kernel = p.dtype == DType::f16 ? kernel_for<f16>(p) : kernel_for<bf16>(p);
  cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(limits.block_memory));
  GradWeightArguments a;
  const auto set = [](int& to, std::int64_t value) { to = static_cast<int>(value); };
  set(a.n, p.n), set(a.h, p.h), set(a.w, p.w), set(a.c, p.c), set(a.p, p.p()), set(a.q, p.q()), set(a.k, p.k);
  const int units = a.k / slice * x_slices(a.c);
  std::vector<DirectWay> ways;
  for (const int blocks : {limits.multiprocessors, 2 * limits.multiprocessors})   // wanted
    for (const int most_groups : {1, 2, 4, 8}) {
      // Whole images, as many as leave each block one tile, or as few as have enough warps; or bands of rows of one.
      const int wanted = std::max(1, blocks / units);
      a.images = std::min(a.n, divided_up(a.n, wanted)), a.rows = a.p;
      const auto fits = [&] {
        a.column_tiles = divided_up(a.images * a.q, 16);
        a.row_groups = std::min({most_groups, a.rows, most_warps / std::max(1, a.column_tiles)});
        return a.row_groups > 0 && kernel.memory_bytes(a) <= limits.block_memory / (blocks > limits.multiprocessors ? 2 : 1);
      };
      while (!fits() && a.images > 1) a.images = divided_up(a.images, 2);
      while (!fits() && a.rows > 1) a.rows = divided_up(a.rows, 2);
      if (!fits()) continue;
      a.bands = divided_up(a.p, a.rows), a.splits = std::min(wanted, divided_up(a.n, a.images) * a.bands);
      DirectWay way = way_of(kernel, a, limits);
      if (std::none_of(ways.begin(), ways.end(), [&](const DirectWay& other) { return other.name == way.name; })) ways.push_back(std::move(way));
    }
  return ways;
}

}  // namespace lockstep
