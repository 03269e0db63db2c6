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

/// The lines of a tile that a thread copies: a warp takes one at a time, or as many as `packets` lanes each make of it, `lanes` of them.
/// Rows and images are counted on: a division costs as much as a copy.
struct LineWalk {
  int lanes = 32, line, row, image, lane;                    // lane: of the line's
  int line_step, row_step, image_step;
  __device__ LineWalk(int packets, int images) {
    while (lanes / 2 >= packets) lanes /= 2;
    const int thread = static_cast<int>(threadIdx.x);
    line = thread / lanes, lane = thread % lanes, line_step = static_cast<int>(blockDim.x) / lanes;
    row = line / images, image = line - row * images, row_step = line_step / images, image_step = line_step - row_step * images;
  }
  __device__ void go_on(int images) {
    line += line_step, row += row_step, image += image_step;
    if (image >= images) image -= images, ++row;
  }
};

/// `channels` of each pixel, from source.x on, with `left` and `right` columns of zeros (0 or 1) beside the image.
template <int channels, int stride, int left, int right, class T>
__device__ void load_pixels(unsigned tile, const TileSource<T>& source, int rows, int images) {
  constexpr int chunks = channels / 8, bytes = padded_bytes(channels);
  const int width = left + source.w + right, lines = rows * images, packets = source.w * chunks;
  LineWalk walk(packets, images);
  const int first = walk.lane / chunks, chunk = walk.lane % chunks, step = walk.lanes / chunks;   // columns; lanes: a multiple of chunks
  for (; walk.line < lines; walk.go_on(images)) {
    const bool is_inside = source.has(walk.image, walk.row);
    const T* from = is_inside ? source.line(walk.image, walk.row) + first * source.c + chunk * 8 : source.x;
    const int from_step = is_inside ? step * source.c : 0;
    const unsigned to = tile + walk.line * width * bytes + chunk * 16;
    for (int column = first; column < source.w; column += step, from += from_step)
      copy_async<16>(to + slot_of<stride>(column + left, width) * bytes, from, is_inside);
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
  LineWalk walk(out_width * slots, images);
  const int first = walk.lane / slots, slot = walk.lane % slots, s = first_slot + slot, step = walk.lanes / slots;   // lanes: a multiple of slots
  for (; walk.line < rows * images; walk.go_on(images)) {
    const bool has_line = s < 3 && source.has(walk.image, walk.row);
    const T* const from = has_line ? source.line(walk.image, walk.row) : source.x;
    const unsigned to = tile + walk.line * out_width * bytes + slot * channels * 2;
    for (int pixel = first; pixel < out_width; pixel += step) {
      const int column = pixel * stride + s - 1;
      const bool is_inside = has_line && column >= 0 && column < source.w;
      copy_async<channels * 2>(to + pixel * bytes, is_inside ? from + column * channels : from, is_inside);
    }
  }
}

}  // namespace lockstep
