// direct_spatial: a 3x3 convolution's output from its input, or the gradient of the input from that of the output: the same sum with the
// taps turned around.  16-bit factors, f32 sums, by tensor cores.
// A block keeps in shared memory the rows that it reads of one or more images, and the weights of its 16-channel panels of the output.
// A warp computes a panel of `tile` rows of 16 neighbouring columns (of images side by side, where they are narrow): for each column of taps
// and each 16 channels it loads a row of pixels once and uses it for the three rows of output that it touches.
#include <cuda_runtime.h>

#include <algorithm>

#include "backends/direct_kernels.hpp"
#include "backends/direct_launch.hpp"
#include "backends/direct_tile.hpp"

namespace lockstep {
namespace {

/// What a launch hands to the kernel.  A position is a pixel of the output; in a gradient of stride 2, of the input (grad_y), whence the
/// 2 x 2 pixels of the output from (2 h, 2 w) on come.
struct SpatialArguments {
  const void *in = nullptr, *weight = nullptr;
  void* out = nullptr;
  float* sums = nullptr;                       // [blocks.x, 2, out_c]; null: none
  int n = 0, in_h = 0, in_w = 0, out_h = 0, out_w = 0, out_c = 0, width = 0;   // width: positions of a row
  bool adds = false;
  int images = 1, panels = 1, row_groups = 1, column_tiles = 1, bands = 1;     // of a tile, which a block computes at a time; bands: tiles to an image's height
  int tiles = 1;
};

constexpr int most_warps = 16, static_memory = 3072, panel_channels = 16, panel_bytes = padded_bytes(panel_channels);

/// The kinds of kernels.  channels: of the input, as stored.
template <bool is_gradient_, int stride_, int channels_, int tile_>
struct Spatial {
  static constexpr bool is_gradient = is_gradient_, is_window = channels_ < 16, spreads = is_gradient_ && stride_ == 2;
  static constexpr int stride = stride_, channels = channels_, tile = tile_;
  static constexpr int depth = is_window ? 4 * channels : channels;      // channels of a pixel of the tile
  static constexpr int pixel_bytes = padded_bytes(depth);
  static constexpr int spread = spreads ? 2 : 1;                         // output rows and columns to a position
  static constexpr int shifts = is_window ? 1 : spreads ? 2 : 3;         // columns of the tile that a position reads
  static constexpr int taps = is_window ? 1 : 3;                         // in a row
  static constexpr int out_rows = spread * tile;                         // a warp's
  static constexpr int weight_bytes = is_gradient ? padded_bytes(9 * panel_channels) : padded_bytes(3 * taps * depth);   // of a row of weights:
  static constexpr int weight_rows = is_gradient ? channels : panel_channels;   // an output channel's [3, taps, depth]; gradient: an input channel's [9, 16]
  static constexpr int stage_row_bytes = 16 * spread * panel_bytes, stage_bytes = out_rows * stage_row_bytes;            // a warp's results
  static constexpr int in_rows(int positions) { return spreads ? positions + 1 : !is_gradient && stride == 2 ? 2 * positions + 1 : positions + 2; }
  static constexpr int line_pixels(int in_w, int width) { return is_window ? width : spreads ? in_w + 1 : in_w + 2; }
  /// The columns of taps that a shift serves: s, and which column of the output's two.
  static constexpr int columns(int shift) { return spreads && shift == 0 ? 2 : 1; }
  static constexpr int tap_of(int shift, int i) { return spreads ? (shift == 0 ? 1 + i : 0) : is_gradient ? 2 - shift : shift; }
  static constexpr int out_column(int shift, int i) { return spreads ? (shift == 0 ? i : 1) : 0; }
  /// The row of the output, counted from the warp's first, that row `in` of the tile gives to by tap row r; -1: none of the warp's.
  static constexpr int out_row(int in, int r) {
    const int row = spreads ? 2 * in - 1 + r : is_gradient ? in - 2 + r : stride == 1 ? in - r : (in - r) % 2 == 0 ? (in - r) / 2 : -1;
    return row < 0 || row >= out_rows ? -1 : row;
  }
  static std::size_t memory_bytes(const SpatialArguments& a) {
    const std::size_t pixels = static_cast<std::size_t>(in_rows(a.row_groups * tile)) * a.images * line_pixels(a.in_w, a.width);
    const std::size_t warps = static_cast<std::size_t>(a.row_groups) * a.column_tiles * a.panels;
    return pixels * pixel_bytes + static_cast<std::size_t>(a.panels) * weight_rows * weight_bytes + warps * stage_bytes;
  }
};

}  // namespace

/// Begins to copy the block's weights: neighbouring lanes copy neighbours, for all blocks read the same few lines of the second-level cache.
template <class S, class T>
__device__ void load_weights(unsigned to, const T* weight, const SpatialArguments& a, int first_channel) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if constexpr (S::is_window) {
    for (int i = thread; i < a.panels * panel_channels * 12; i += threads) {
      const int s = i % 4, r = i / 4 % 3, row = i / 12;
      copy_async<S::channels * 2>(to + row * S::weight_bytes + (r * 4 + s) * S::channels * 2,
                                  s < 3 ? weight + ((first_channel + row) * 9 + r * 3 + s) * S::channels : weight, s < 3);
    }
  } else if constexpr (!S::is_gradient) {
    constexpr int packets = 9 * S::channels / 8;             // of a row
    for (int i = thread; i < a.panels * panel_channels * packets; i += threads)
      copy_async<16, true>(to + i / packets * S::weight_bytes + i % packets * 16, weight + first_channel * 9 * S::channels + i * 8, true);
  } else {
    const int shift = a.panels == 4 ? 3 : a.panels;          // 2 panels packets are neighbours
    for (int i = thread; i < S::channels * 9 << shift; i += threads) {
      const int packet = i & ((1 << shift) - 1), tap = (i >> shift) % 9, row = (i >> shift) / 9;
      copy_async<16, true>(to + (packet / 2 * S::channels + row) * S::weight_bytes + tap * panel_channels * 2 + packet % 2 * 16,
                           weight + (row * 9 + tap) * a.out_c + first_channel + packet * 8, true);
    }
  }
}

template <class T, class S>
using SpatialSums = float[S::out_rows][S::spread][2][4];   // a warp's: row, column of two, 8 channels, as multiply_add has them

/// Adds what one column of the tile contributes.  in, weight: a lane's addresses for load_matrices.
template <class T, class S, int shift>
__device__ void add_shift(SpatialSums<T, S>& sums, unsigned in, int row_bytes, int odd_columns, unsigned weight) {
  if constexpr (S::stride == 2 && !S::is_gradient && !S::is_window) in += shift == 1 ? odd_columns : shift / 2 * S::pixel_bytes;
  else in += shift * S::pixel_bytes;
  #pragma unroll
  for (int k = 0; k < S::depth / 16; ++k) {
    unsigned w[S::columns(shift)][3][4];
    #pragma unroll
    for (int i = 0; i < S::columns(shift); ++i)
      #pragma unroll
      for (int r = 0; r < 3; ++r) {
        const int tap = r * S::taps + S::tap_of(shift, i);
        load_matrices<S::is_gradient>(w[i][r], weight + (S::is_gradient ? k * 16 * S::weight_bytes + tap * panel_channels * 2 : (tap * S::depth + k * 16) * 2));
      }
    #pragma unroll
    for (int row = 0; row < S::in_rows(S::tile); ++row) {
      unsigned x[4];
      load_matrices<false>(x, in + row * row_bytes + k * 32);
      #pragma unroll
      for (int i = 0; i < S::columns(shift); ++i)
        #pragma unroll
        for (int r = 0; r < 3; ++r)
          if (const int to = S::out_row(row, r); to >= 0)
            #pragma unroll
            for (int half = 0; half < 2; ++half) multiply_add<T>(sums[to][S::out_column(shift, i)][half], x, w[i][r][2 * half], w[i][r][2 * half + 1]);
    }
  }
}

/// Of the sums of a panel's channels over a warp's pixels, [of y, of its square][16], the lane's, which is number sum_of(lane).
/// has: rows lane / 4 and the one 8 behind.
template <int rows>
__device__ float sum_panel(const float (&sums)[rows][1][2][4], const bool (&has)[2], int valid_rows) {
  float v[8];                                                // [8 channels][2 channels][of y, of its square], a lane's
  #pragma unroll
  for (int half = 0; half < 2; ++half)
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0, squares = 0;
      #pragma unroll
      for (int row = 0; row < rows; ++row)
        #pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float y = row < valid_rows && has[j] ? sums[row][0][half][2 * j + i] : 0.f;
          sum += y, squares += y * y;
        }
      v[half * 4 + i * 2] = sum, v[half * 4 + i * 2 + 1] = squares;
    }
  // Lanes that are 16, 8, 4 apart share the numbers between them, until each has one: v[lane / 4].
  const int lane = static_cast<int>(threadIdx.x) % 32;
  #pragma unroll
  for (int count = 4; count > 0; count /= 2) {
    const bool is_upper = (lane & count * 4) != 0;
    #pragma unroll
    for (int i = 0; i < count; ++i) {
      const float mine = is_upper ? v[i + count] : v[i], other = is_upper ? v[i] : v[i + count];
      v[i] = mine + __shfl_xor_sync(~0u, other, count * 4);
    }
  }
  return v[0];
}
__device__ inline int sum_of(int lane) { return lane / 4 % 2 * panel_channels + lane / 16 * 8 + lane % 4 * 2 + lane / 8 % 2; }

template <class T, class S>
__global__ void __launch_bounds__(most_warps * 32) direct_spatial(const SpatialArguments a) {
  extern __shared__ float4 memory[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, groups = a.row_groups * a.column_tiles;
  const int panel = warp / groups, row_group = warp % groups / a.column_tiles, column_tile = warp % a.column_tiles;
  const int block_channel = static_cast<int>(blockIdx.y) * a.panels * panel_channels, first_tile = static_cast<int>(blockIdx.x);
  const int positions = a.row_groups * S::tile, line_pixels = S::line_pixels(a.in_w, a.width), rows = S::in_rows(positions), row_bytes = a.images * line_pixels * S::pixel_bytes;
  const unsigned tile_memory = shared_address(memory), weights = tile_memory + rows * row_bytes, stages = weights + a.panels * S::weight_rows * S::weight_bytes;
  const unsigned stage = stages + warp * S::stage_bytes, staged = stage + lane / 2 * panel_bytes + lane % 2 * 16;
  const std::int64_t out_row_size = static_cast<std::int64_t>(a.out_w) * a.out_c;
  [[maybe_unused]] float total = 0;                          // of the tiles' sums, the lane's

  for (int tile = first_tile; tile < a.tiles; tile += static_cast<int>(gridDim.x)) {
    // Where a lane's 16-byte packets of the output go: packet lane + 32 i of each of the warp's rows.
    const int first_image = tile / a.bands * a.images, block_row = tile % a.bands * positions;
    const int out_row = (block_row + row_group * S::tile) * S::spread, valid_rows = min(S::out_rows, a.out_h - out_row);
    T* packets[S::spread];
    #pragma unroll
    for (int i = 0; i < S::spread; ++i) {
      const int pixel = lane / 2 + 16 * i, at = column_tile * 16 + pixel / S::spread, image = at / a.width, column = (at - image * a.width) * S::spread + pixel % S::spread;
      const bool has = image < a.images && first_image + image < a.n && column < a.out_w;
      packets[i] = has ? static_cast<T*>(a.out) + (static_cast<std::int64_t>(first_image + image) * a.out_h + out_row) * out_row_size +
                             static_cast<std::int64_t>(column) * a.out_c + block_channel + panel * panel_channels + lane % 2 * 8
                       : nullptr;
    }
    const TileSource<T> source{static_cast<const T*>(a.in), a.n, a.in_h, a.in_w, S::channels, first_image, S::spreads ? block_row : block_row * S::stride - 1};

    if (tile == first_tile) take_turn_in_stream(), load_weights<S>(weights, static_cast<const T*>(a.weight), a, block_channel);
    else __syncthreads();                                    // all have read the tile before
    if constexpr (S::is_window) load_windows<S::channels, 4, S::stride>(tile_memory, source, rows, a.images, a.width, 0);
    else load_pixels<S::channels, S::is_gradient ? 1 : S::stride, S::spreads ? 0 : 1, 1>(tile_memory, source, rows, a.images);
    if (a.adds)
      for (int row = 0; row < valid_rows; ++row)
        #pragma unroll
        for (int i = 0; i < S::spread; ++i)
          if (packets[i]) copy_async<16>(staged + row * S::stage_row_bytes + i * 16 * panel_bytes, packets[i] + row * out_row_size, true);
    close_copies();

    SpatialSums<T, S> sums = {};
    const int at = min(column_tile * 16 + lane % 16, a.images * a.width - 1), image = at / a.width;   // positions behind the last are computed in vain
    const unsigned in = tile_memory + row_group * S::tile * (S::is_gradient ? 1 : S::stride) * row_bytes + (image * line_pixels + at - image * a.width) * S::pixel_bytes + lane / 16 * 16;
    const int matrix_row = S::is_gradient ? lane % 16 : lane % 8 + lane / 16 * 8, matrix_half = S::is_gradient ? lane / 16 : lane / 8 % 2;
    const unsigned w = weights + (panel * S::weight_rows + matrix_row) * S::weight_bytes + matrix_half * 16;
    const int odd_columns = (line_pixels + 1) / 2 * S::pixel_bytes;
    wait_for_copies<0>();
    __syncthreads();
    add_shift<T, S, 0>(sums, in, row_bytes, odd_columns, w);
    if constexpr (S::shifts > 1) add_shift<T, S, 1>(sums, in, row_bytes, odd_columns, w);
    if constexpr (S::shifts > 2) add_shift<T, S, 2>(sums, in, row_bytes, odd_columns, w);

    // Through shared memory, so that a pixel's 32 bytes are written at once.
    #pragma unroll
    for (int row = 0; row < S::out_rows; ++row)
      #pragma unroll
      for (int i = 0; i < S::spread; ++i)
        #pragma unroll
        for (int half = 0; half < 2; ++half)
          #pragma unroll
          for (int j = 0; j < 2; ++j) {
            const unsigned to = stage + row * S::stage_row_bytes + ((lane / 4 + 8 * j) * S::spread + i) * panel_bytes + half * 16 + lane % 4 * 4;
            float2 y{sums[row][i][half][2 * j], sums[row][i][half][2 * j + 1]};
            if (a.adds) {
              const float2 there = unpacked<T>(load_shared(to));
              y.x += there.x, y.y += there.y;
            }
            store_shared(to, packed<T>(y.x, y.y));
          }
    __syncwarp();
    #pragma unroll
    for (int row = 0; row < S::out_rows; ++row)
      #pragma unroll
      for (int i = 0; i < S::spread; ++i)
        if (row < valid_rows && packets[i])
          *reinterpret_cast<uint4*>(packets[i] + row * out_row_size) = load_shared_packet(staged + row * S::stage_row_bytes + i * 16 * panel_bytes);

    if constexpr (!S::is_gradient)
      if (a.sums) {
        bool has[2];
        for (int j = 0; j < 2; ++j) {
          const int position = column_tile * 16 + lane / 4 + 8 * j, image = position / a.width;
          has[j] = image < a.images && first_image + image < a.n;
        }
        total += sum_panel(sums, has, valid_rows);
      }
  }

  // The block's sums, of its warps'.
  if constexpr (!S::is_gradient)
    if (a.sums) {
      __shared__ float totals[most_warps][2 * panel_channels];
      totals[warp][sum_of(lane)] = total;
      __syncthreads();
      if (warp >= a.panels) return;
      float sum = 0;
      #pragma unroll 4
      for (int k = 0; k < groups; ++k) sum += totals[warp * groups + k][lane];
      a.sums[(static_cast<std::int64_t>(blockIdx.x) * 2 + lane / panel_channels) * a.out_c + block_channel + warp * panel_channels + lane % panel_channels] = sum;
    }
}

namespace {

/// A kernel and what the choice of its blocks depends on.
struct SpatialKernel {
  const void* function = nullptr;
  std::size_t (*memory_bytes)(const SpatialArguments&) = nullptr;
  int tile = 1;
  int loads = 0, products = 0;   // of a warp: load_matrices, multiply_add
};

template <class T, class S>
SpatialKernel spatial_kernel() {
  const int k = S::depth / 16, taps = S::is_window ? 3 : 9;
  return {reinterpret_cast<const void*>(direct_spatial<T, S>), S::memory_bytes, S::tile, k * (S::shifts * S::in_rows(S::tile) + taps), 2 * k * taps * S::tile};
}

/// All that there are for images of so many channels.
template <class T, int channels>
std::vector<SpatialKernel> kernels_for(bool is_gradient, std::int64_t stride) {
  if constexpr (channels >= 16)
    if (is_gradient) {
      if (stride == 1) return {spatial_kernel<T, Spatial<true, 1, channels, 4>>(), spatial_kernel<T, Spatial<true, 1, channels, 2>>()};
      return {spatial_kernel<T, Spatial<true, 2, channels, 2>>(), spatial_kernel<T, Spatial<true, 2, channels, 1>>()};
    }
  if (is_gradient) return {};
  if (stride == 1) return {spatial_kernel<T, Spatial<false, 1, channels, 4>>(), spatial_kernel<T, Spatial<false, 1, channels, 2>>()};
  return {spatial_kernel<T, Spatial<false, 2, channels, 4>>(), spatial_kernel<T, Spatial<false, 2, channels, 2>>()};
}
template <class T>
std::vector<SpatialKernel> kernels_for(bool is_gradient, std::int64_t stride, std::int64_t channels) {
  switch (channels) {
    case 4: return kernels_for<T, 4>(is_gradient, stride);
    case 8: return kernels_for<T, 8>(is_gradient, stride);
    case 16: return kernels_for<T, 16>(is_gradient, stride);
    case 32: return kernels_for<T, 32>(is_gradient, stride);
    case 64: return kernels_for<T, 64>(is_gradient, stride);
    default: return {};
  }
}

/// Clock cycles, roughly: each multiprocessor loads its blocks' memory, reads it by matrices, and multiplies; few warps do so slowly.
double guessed_cost(const SpatialKernel& kernel, int blocks, int warps, std::size_t memory, const GpuLimits& limits) {
  const int each = divided_up(blocks, limits.multiprocessors), resident = std::clamp(static_cast<int>(limits.multiprocessor_memory / (memory + 1024)), 1, std::max(1, most_warps / warps));
  const double work = std::max(4.0 * kernel.loads, 1.7 * kernel.products) * warps, chain = 12.0 * kernel.products / std::min(each, resident);
  return 1000.0 * divided_up(each, resident) + each * (static_cast<double>(memory) / 48 + std::max(work, chain));
}

/// height: rows of positions.
DirectWay way_of(const SpatialKernel& kernel, SpatialArguments a, int height, bool writes_sums, bool is_gradient, const GpuLimits& limits) {
  a.bands = divided_up(height, a.row_groups * kernel.tile);
  a.tiles = divided_up(a.n, a.images) * a.bands;
  const int blocks = writes_sums ? std::min(a.tiles, most_sum_parts) : a.tiles, slices = a.out_c / (a.panels * panel_channels), warps = a.row_groups * a.column_tiles * a.panels;
  const bool is_early = may_launch_early(kernel.function);
  const std::size_t memory = kernel.memory_bytes(a);
  return {.name = text_of("direct rows=", a.row_groups * kernel.tile, " images=", a.images, " channels=", a.panels * panel_channels, " tile=", kernel.tile),
          .sum_parts = writes_sums ? blocks : 1,
          .cost = guessed_cost(kernel, a.tiles * slices, warps, memory, limits),
          .start = [=](void* stream, const PlanOperands& o) {
            SpatialArguments b = a;
            b.in = is_gradient ? o.y : o.x, b.out = is_gradient ? o.x : o.y, b.weight = o.weight;
            b.sums = writes_sums ? o.sums : nullptr;
            const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(slices));
            start_kernel(kernel.function, grid, static_cast<unsigned>(warps) * 32, memory, stream, b, is_early);
          }};
}

}  // namespace

std::vector<DirectWay> direct_spatial_ways(const PlanRequest& request, const GpuLimits& limits) {
  const ConvProblem& p = request.problem;
  const bool is_gradient = request.direction == ConvDirection::grad_input, spreads = is_gradient && p.stride == 2;
  const auto kernels = p.dtype == DType::f16 ? kernels_for<f16>(is_gradient, p.stride, is_gradient ? p.k : p.c) : kernels_for<bf16>(is_gradient, p.stride, is_gradient ? p.k : p.c);
  SpatialArguments a;
  const auto set = [](int& to, std::int64_t value) { to = static_cast<int>(value); };
  set(a.n, p.n), set(a.in_h, is_gradient ? p.p() : p.h), set(a.in_w, is_gradient ? p.q() : p.w);
  set(a.out_h, is_gradient ? p.h : p.p()), set(a.out_w, is_gradient ? p.w : p.q()), set(a.out_c, is_gradient ? p.c : p.k);
  a.width = spreads ? a.in_w : a.out_w, a.adds = request.adds;
  const int height = spreads ? a.in_h : a.out_h, narrow = std::max(1, 16 / a.width);   // narrow: images that fill 16 columns
  std::vector<DirectWay> ways;
  for (const SpatialKernel& kernel : kernels) {
    cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(limits.block_memory) - static_memory);
    const int most_groups = divided_up(height, kernel.tile);
    for (int groups = std::min(most_warps, most_groups), last = 0; groups != last; last = groups, groups = divided_up(groups, 2))
      for (const int images : {narrow, 2 * narrow})
        for (const int panels : {1, 2, 4}) {
          a.row_groups = groups, a.images = std::min(images, a.n), a.panels = panels, a.column_tiles = divided_up(a.images * a.width, 16);
          const int warps = a.row_groups * a.column_tiles * a.panels;
          if (a.out_c % (panels * panel_channels) != 0 || (images > narrow && (a.width >= 16 || narrow >= a.n))) continue;
          if (warps > most_warps || (warps < 2 && groups < most_groups) || kernel.memory_bytes(a) + static_memory > limits.block_memory) continue;
          ways.push_back(way_of(kernel, a, height, request.sums, is_gradient, limits));
        }
  }
  return ways;
}

}  // namespace lockstep
