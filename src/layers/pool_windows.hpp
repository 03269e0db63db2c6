// pool_windows: which pixels a window or bin holds, and which of them hold a pixel.
#pragma once
#include "layers/lanes.hpp"
#include "layers/pool.hpp"

namespace lockstep {

/// Geometry of one pooling, x [n, h, w, c] -> y [n, p, q, c].
struct Windows {
  int h, w, p, q;
  std::int64_t c;
  int kernel, stride, pad;               // of max_pool
};
inline Windows windows_of(const Shape& x, const Shape& y, const PoolWindow& window = {}) {
  const auto i = [](std::int64_t v) { return static_cast<int>(v); };
  return {i(x.h), i(x.w), i(y.h), i(y.w), x.c, i(window.kernel), i(window.stride), i(window.pad)};
}
/// A work item takes a few pixels: all blocks of them come before the next few, so that reads stay near one another.  A GPU wants many items.
inline constexpr std::int64_t few_pixels = runs_on_host ? 8 : 1;
inline RowCut cut_pixels(const Shape& image) { return cut_rows(image, few_pixels); }

/// Pixel `index` of [n, height, width], and the one after it.
struct Pixel {
  std::int64_t n;
  int y, x, height, width;
  LOCKSTEP_FUNCTION Pixel(std::int64_t index, int height_, int width_) : height(height_), width(width_) {
    const std::int64_t row = quotient(index, width);
    n = quotient(row, height), y = static_cast<int>(row - n * height), x = static_cast<int>(index - row * width);
  }
  LOCKSTEP_FUNCTION void advance() {
    if (++x < width) return;
    x = 0;
    if (++y == height) y = 0, ++n;
  }
};

/// [first, end)
struct Extent {
  int first, end;
};
/// Places of window `out` that lie in an image of `extent` pixels; place 0 is at pixel out * stride - pad.
LOCKSTEP_FUNCTION Extent places_inside(const Windows& g, int out, int extent) {
  const int begin = out * g.stride - g.pad;
  return {begin < 0 ? -begin : 0, begin + g.kernel > extent ? extent - begin : g.kernel};
}
/// Windows, of `count`, that hold a pixel.
LOCKSTEP_FUNCTION Extent windows_around(const Windows& g, int pixel, int count) {
  const int at = pixel + g.pad, end = at / g.stride + 1;
  return {at < g.kernel ? 0 : (at - g.kernel) / g.stride + 1, end < count ? end : count};
}
/// Bin i of `count` over `extent` pixels is [floor(i extent / count), ceil((i + 1) extent / count)).
LOCKSTEP_FUNCTION Extent pixels_of_bin(int i, int extent, int count) { return {i * extent / count, ((i + 1) * extent + count - 1) / count}; }
/// Bins that hold a pixel: those with  i * extent < (pixel + 1) * count  and  (i + 1) * extent > pixel * count.
LOCKSTEP_FUNCTION Extent bins_around(int pixel, int extent, int count) { return {pixel * count / extent, ((pixel + 1) * count + extent - 1) / extent}; }
LOCKSTEP_FUNCTION int length(const Extent& e) { return e.end - e.first; }

/// The largest of the values met, and its place, a small integer.  As PyTorch: the first of equals; a NaN wins.
template <int width>
struct Largest {
  Lanes<width> value, place;
  LOCKSTEP_FUNCTION explicit Largest(int first_place) : value(zeros<width>()), place(value) {
    for (int p = 0; p < value.parts; ++p) value.v[p] -= Kokkos::Experimental::infinity_v<float>, place.v[p] += static_cast<float>(first_place);
  }
  LOCKSTEP_FUNCTION void meet(const Lanes<width>& x, int x_place) {
    const Lanes<width> zero = zeros<width>();
    for (int p = 0; p < value.parts; ++p) {
      const auto wins = (x.v[p] > value.v[p]) | (x.v[p] != x.v[p]);
      value.v[p] = wins ? x.v[p] : value.v[p];
      place.v[p] = wins ? zero.v[p] + static_cast<float>(x_place) : place.v[p];
    }
  }
};

}  // namespace lockstep
