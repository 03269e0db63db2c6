// Method: a triangle as wide as one output pixel (never narrower than one input pixel), columns first, then rows, each pass rounded
// to u8 with 22-bit fixed-point weights: Pillow's libImaging/Resample.c, whose rounding is kept so that tests can ask for equality.
#include "images/resize.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep {
namespace {

constexpr int precision_bits = 22;

/// For each output position: the first input position and the weights from there on; `taps` slots each, unused ones 0.
struct Weights {
  int taps = 0;
  std::vector<std::int32_t> first, count, values;
};

/// `covered` of `from` input positions are spread over `to` output positions.
Weights triangle_weights(std::int64_t from, double covered, std::int64_t to) {
  const double scale = covered / static_cast<double>(to), support = std::max(scale, 1.0);
  Weights w;
  w.taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  w.first.resize(static_cast<std::size_t>(to)), w.count.resize(static_cast<std::size_t>(to)), w.values.resize(static_cast<std::size_t>(to * w.taps));
  std::vector<double> real(static_cast<std::size_t>(w.taps));
  for (std::int64_t i = 0; i < to; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int count = static_cast<int>(std::min<std::int64_t>(from, static_cast<std::int64_t>(center + support + 0.5))) - first;
    double sum = 0;
    for (int k = 0; k < count; ++k) {
      const double distance = std::abs((k + first - center + 0.5) * (1.0 / support));
      sum += real[static_cast<std::size_t>(k)] = distance < 1 ? 1 - distance : 0;
    }
    for (std::size_t k = 0; std::cmp_less(k, count); ++k)
      w.values[at * static_cast<std::size_t>(w.taps) + k] = static_cast<std::int32_t>(0.5 + (sum != 0 ? real[k] / sum : 0) * (1 << precision_bits));
    w.first[at] = first, w.count[at] = count;
  }
  return w;
}

std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> precision_bits, 0, 255)); }
constexpr std::int32_t half = 1 << (precision_bits - 1);

/// [height, width, 3] -> [height, to, 3]
std::vector<std::uint8_t> resize_columns(const Picture& from, std::int64_t to) {
  const Weights w = triangle_weights(from.width, from.covered_width, to);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(from.height * to * 3));
  std::uint8_t* target = out.data();
  for (std::int64_t y = 0; y < from.height; ++y)
    for (std::int64_t x = 0; x < to; ++x, target += 3) {
      const std::int32_t* weight = &w.values[static_cast<std::size_t>(x * w.taps)];
      const std::uint8_t* pixel = from.pixels + 3 * (y * from.width + w.first[static_cast<std::size_t>(x)]);
      std::int32_t r = half, g = half, b = half;
      for (int k = 0; k < w.count[static_cast<std::size_t>(x)]; ++k, pixel += 3) {
        r += pixel[0] * weight[k];
        g += pixel[1] * weight[k];
        b += pixel[2] * weight[k];
      }
      target[0] = rounded(r), target[1] = rounded(g), target[2] = rounded(b);
    }
  return out;
}

/// [height, width, 3] -> [to, width, 3]
std::vector<std::uint8_t> resize_rows(const Picture& from, std::int64_t to) {
  const Weights w = triangle_weights(from.height, from.covered_height, to);
  const std::int64_t bytes = from.width * 3;
  std::vector<std::uint8_t> out(static_cast<std::size_t>(to * bytes));
  std::vector<std::int32_t> sums(static_cast<std::size_t>(bytes));
  for (std::int64_t y = 0; y < to; ++y) {
    std::fill(sums.begin(), sums.end(), half);
    for (int k = 0; k < w.count[static_cast<std::size_t>(y)]; ++k) {
      const std::int32_t weight = w.values[static_cast<std::size_t>(y * w.taps + k)];
      const std::uint8_t* row = from.pixels + (w.first[static_cast<std::size_t>(y)] + k) * bytes;
      for (std::int64_t i = 0; i < bytes; ++i) sums[static_cast<std::size_t>(i)] += row[i] * weight;
    }
    std::transform(sums.begin(), sums.end(), out.begin() + y * bytes, rounded);
  }
  return out;
}

}  // namespace

std::vector<std::uint8_t> resize_bilinear(const Picture& from, std::int64_t height, std::int64_t width) {
  const bool keeps_width = from.covered_width == static_cast<double>(width), keeps_height = from.covered_height == static_cast<double>(height);
  if (keeps_width && keeps_height) return {from.pixels, from.pixels + from.height * from.width * 3};
  if (keeps_width) return resize_rows(from, height);
  std::vector<std::uint8_t> columns = resize_columns(from, width);
  return keeps_height ? columns : resize_rows({columns.data(), from.height, width, from.covered_height}, height);
}

}  // namespace lockstep
