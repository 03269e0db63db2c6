// direct_stem: what the kernels for a net's first layer share: windows of an image of 4 channels.  For files that nvcc compiles.
// A row of a window is contiguous in the image: up to 12 pixels of 8 bytes, padded to `steps` times 16 numbers, whose weights are zero.
// Windows of neighbours begin 16 bytes (stride 2) or 32 (stride 4) apart: a row of the image in shared memory is a matrix of windows as it is,
// whose rows overlap.  With stride 4 its even packets of 16 bytes come before its odd ones: so neighbours' are in different banks there, too.
// A window that would begin at an odd column begins at the one before, so that images of even width are copied by 16 bytes.
#pragma once
#include "backends/direct_kernels.hpp"
#include "backends/direct_mma.hpp"

namespace lockstep {

inline constexpr int stem_k = 64;                            // channels of the output

struct StemArguments {
  const void *x = nullptr, *factor = nullptr;                // factor: the weights, or the output's gradient
  void* y = nullptr;                                         // forward
  float* sums = nullptr;                                     // forward: [blocks, 2, k], null: none.  grad_weight: [blocks, a block's sums]
  int n = 0, h = 0, w = 0, p = 0, q = 0, taps = 0, pad = 0;
  int rows = 1, columns = 1, bands = 1, parts = 1, tiles = 1;   // a tile: rows and columns of the output; bands and parts to an image
  int in_rows = 0, in_columns = 0, pitch = 0, odd = 0;       // what a tile reads; bytes of a row in shared memory, and before its odd packets
  int steps() const { return (taps + 1 + 3) / 4; }
  __device__ int lead() const { return pad + pad % 2; }      // columns of the first window that are left of the image
};

/// Bytes between what a lane reads of a window's row for one step and for the next.
template <int stride>
constexpr int stem_step = stride == 2 ? 32 : 16;
/// Where a lane finds its row of the windows' matrices, relative to the first window's: rows lane % 16, columns 8 (lane / 16).
template <int stride>
__device__ unsigned stem_lane(const StemArguments& a, int lane) { return lane / 16 * (stride == 2 ? 16 : a.odd); }

/// Begins to copy the rows that a tile reads, from the image's row and column on, which may be outside: zeros.  bytes: of a copy, 16 or 8.
template <int bytes, int stride, class T>
__device__ void load_stem_rows(unsigned to, const T* image, const StemArguments& a, int first_row, int first_column) {
  constexpr int pixels = bytes / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < a.in_rows; row += warps) {
    const int h = first_row + row;
    const bool has_row = h >= 0 && h < a.h;
    const T* const line = has_row ? image + static_cast<std::int64_t>(h) * a.w * 4 : image;
    const unsigned line_to = to + row * a.pitch;
    for (int i = lane * pixels; i < a.in_columns; i += 32 * pixels) {
      const int column = first_column + i, packet = i / 2;
      const bool is_inside = has_row && column >= 0 && column + pixels <= a.w;
      const unsigned at = stride == 2 ? packet * 16 : packet / 2 * 16 + packet % 2 * a.odd;
      copy_async<bytes>(line_to + at + i % 2 * 8, is_inside ? line + column * 4 : image, is_inside);
    }
  }
}
/// The same by the longest copies that the image's width allows.
template <int stride, class T>
__device__ void load_stem_rows(unsigned to, const T* x, const StemArguments& a, int image, int out_row, int out_column) {
  const T* const from = x + static_cast<std::int64_t>(image) * a.h * a.w * 4;
  const int row = out_row * stride - a.pad, column = out_column * stride - a.lead();
  if (a.w % 2 == 0) load_stem_rows<16, stride>(to, from, a, row, column);
  else load_stem_rows<8, stride>(to, from, a, row, column);
}

/// Of a problem, without a tile.
inline StemArguments stem_arguments(const ConvProblem& p) {
  StemArguments a;
  const auto set = [](int& to, std::int64_t value) { to = static_cast<int>(value); };
  set(a.n, p.n), set(a.h, p.h), set(a.w, p.w), set(a.p, p.p()), set(a.q, p.q()), set(a.taps, p.r), set(a.pad, p.pad);
  return a;
}
inline void set_tile(StemArguments& a, int stride, int rows, int columns) {
  a.rows = rows, a.columns = columns, a.bands = divided_up(a.p, rows), a.parts = divided_up(a.q, columns), a.tiles = a.n * a.bands * a.parts;
  a.in_rows = (rows - 1) * stride + a.taps, a.in_columns = (columns - 1) * stride + a.steps() * 4;
  a.odd = stride == 2 ? 0 : divided_up(a.in_columns, 4) * 16;
  a.pitch = stride == 2 ? a.in_columns * 8 : 2 * a.odd;
}

/// A kernel runs as many blocks as the GPU holds at once: how many of these a multiprocessor holds, 0: none.
inline int resident_blocks(const void* function, int threads, std::size_t memory, const GpuLimits& limits) {
  int blocks = 0;
  if (memory > limits.block_memory || cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, memory) != cudaSuccess) return 0;
  return blocks;
}

}  // namespace lockstep
