// direct_tile: how a block of a direct convolution copies its part of the input to shared memory.  For files that nvcc compiles.
// A tile is lines of pixels, one for each row and image: [row][image][column][channels], a pixel padded by 16 bytes, so that eight
// neighbours, whatever their channels, lie in different banks.  What is outside of the image is zero.
#pragma once
#include "backends/direct_mma.hpp"

namespace lockstep {

/// Where a tile comes from: x [n, h, w, c], from an image and a row on that may be outside.
template <class T>
struct TileSource {
  const T* x;
  int n, h, w, c;
  int image, row;
  __device__ bool has(int i, int r) const { return image + i < n && row + r >= 0 && row + r < h; }
  __device__ const T* line(int i, int r) const { return x + (static_cast<std::int64_t>(image + i) * h + row + r) * w * c; }
};

/// Bytes of a pixel that holds so many channels.
constexpr int padded_bytes(int channels) { return channels * 2 + 16; }

/// Where a column lies in its line.  stride 2: the even ones first, so that the pixels of one tap are neighbours.
template <int stride>
__device__ int slot_of(int column, int width) { return stride == 1 ? column : column / 2 + column % 2 * ((width + 1) / 2); }

/// `channels` of each pixel, from source.x on, with `left` and `right` columns of zeros (0 or 1) beside the image.
template <int channels, int stride, int left, int right, class T>
__device__ void load_pixels(unsigned tile, const TileSource<T>& source, int rows, int images) {
  constexpr int chunks = channels / 8, bytes = padded_bytes(channels);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const int width = left + source.w + right, lines = rows * images;
  for (int line = warp; line < lines; line += warps) {
    const int row = line / images, image = line - row * images;
    const bool is_inside = source.has(image, row);
    const T* const from = is_inside ? source.line(image, row) : source.x;
    const unsigned to = tile + line * width * bytes;
    for (int i = lane; i < source.w * chunks; i += 32) {
      const int column = i / chunks, chunk = i % chunks;
      copy_async<16>(to + slot_of<stride>(column + left, width) * bytes + chunk * 16, is_inside ? from + column * source.c + chunk * 8 : from, is_inside);
    }
  }
  if constexpr (left + right > 0)
    for (int i = static_cast<int>(threadIdx.x); i < lines * (left + right) * chunks; i += static_cast<int>(blockDim.x)) {
      const int side = i / chunks % (left + right), line = i / chunks / (left + right), column = left == 1 && side == 0 ? 0 : width - 1;
      store_zeros(tile + (line * width + slot_of<stride>(column, width)) * bytes + i % chunks * 16);
    }
}

/// For images of 4 or 8 channels: a pixel of the tile stands for one of the output, and holds what the three taps of a row read, side by side,
/// and zeros behind them: `slots` of the four, from first_slot on.
template <int channels, int slots, int stride, class T>
__device__ void load_windows(unsigned tile, const TileSource<T>& source, int rows, int images, int out_width, int first_slot) {
  constexpr int bytes = padded_bytes(channels * slots);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  for (int line = warp; line < rows * images; line += warps) {
    const int row = line / images, image = line - row * images;
    const bool has_line = source.has(image, row);
    const T* const from = has_line ? source.line(image, row) : source.x;
    const unsigned to = tile + line * out_width * bytes;
    for (int i = lane; i < out_width * slots; i += 32) {
      const int s = first_slot + i % slots, column = i / slots * stride + s - 1;
      const bool is_inside = has_line && s < 3 && column >= 0 && column < source.w;
      copy_async<channels * 2>(to + i / slots * bytes + i % slots * channels * 2, is_inside ? from + column * channels : from, is_inside);
    }
  }
}

}  // namespace lockstep
