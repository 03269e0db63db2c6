// Method: a triangle as wide as one output pixel (never narrower than one input pixel), columns first, then rows, each pass rounded
// to u8 with 22-bit fixed-point weights: Pillow's libImaging/Resample.c, whose rounding is kept so that tests can ask for equality.
#include "images/resize.hpp"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

constexpr int precision_bits = 22;

/// For each output position: the first input position and the weights from there on; `taps` slots each, unused ones 0.
struct Weights {
  int taps = 0;
  std::vector<std::int32_t> first, count, values;
};

Weights triangle_weights(std::int64_t from, std::int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), support = std::max(scale, 1.0);
  Weights w;
  w.taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  w.first.resize(to), w.count.resize(to), w.values.assign(to * w.taps, 0);
  std::vector<double> real(w.taps);
  for (std::int64_t i = 0; i < to; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int count = static_cast<int>(std::min<std::int64_t>(from, static_cast<std::int64_t>(center + support + 0.5))) - first;
    double sum = 0;
    for (int k = 0; k < count; ++k) {
      const double distance = std::abs((k + first - center + 0.5) * (1.0 / support));
      sum += real[k] = distance < 1 ? 1 - distance : 0;
    }
    for (int k = 0; k < count; ++k)
      w.values[i * w.taps + k] = static_cast<std::int32_t>(0.5 + (sum != 0 ? real[k] / sum : real[k]) * (1 << precision_bits));
    w.first[i] = first, w.count[i] = count;
  }
  return w;
}

std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> precision_bits, 0, 255)); }
constexpr std::int32_t half = 1 << (precision_bits - 1);

/// [height, from, 3] -> [height, to, 3]
std::vector<std::uint8_t> resize_columns(const std::uint8_t* in, std::int64_t height, std::int64_t from, std::int64_t to) {
  const Weights w = triangle_weights(from, to);
  std::vector<std::uint8_t> out(height * to * 3);
  for (std::int64_t y = 0; y < height; ++y) {
    const std::uint8_t* row = in + y * from * 3;
    std::uint8_t* target = out.data() + y * to * 3;
    for (std::int64_t x = 0; x < to; ++x, target += 3) {
      const std::int32_t* weight = &w.values[x * w.taps];
      const std::uint8_t* pixel = row + std::int64_t{w.first[x]} * 3;
      std::int32_t r = half, g = half, b = half;
      for (int k = 0; k < w.count[x]; ++k, pixel += 3) {
        r += pixel[0] * weight[k];
        g += pixel[1] * weight[k];
        b += pixel[2] * weight[k];
      }
      target[0] = rounded(r), target[1] = rounded(g), target[2] = rounded(b);
    }
  }
  return out;
}

/// [from, width, 3] -> [to, width, 3]
std::vector<std::uint8_t> resize_rows(const std::uint8_t* in, std::int64_t from, std::int64_t to, std::int64_t width) {
  const Weights w = triangle_weights(from, to);
  const std::int64_t bytes = width * 3;
  std::vector<std::uint8_t> out(to * bytes);
  std::vector<std::int32_t> sums(bytes);
  for (std::int64_t y = 0; y < to; ++y) {
    std::fill(sums.begin(), sums.end(), half);
    for (int k = 0; k < w.count[y]; ++k) {
      const std::int32_t weight = w.values[y * w.taps + k];
      const std::uint8_t* row = in + (w.first[y] + k) * bytes;
      for (std::int64_t i = 0; i < bytes; ++i) sums[i] += row[i] * weight;
    }
    std::transform(sums.begin(), sums.end(), out.begin() + y * bytes, rounded);
  }
  return out;
}

}  // namespace

std::vector<std::uint8_t> resize_bilinear(const std::uint8_t* from, std::int64_t height, std::int64_t width, std::int64_t to_height,
                                          std::int64_t to_width) {
  if (width == to_width && height == to_height) return {from, from + height * width * 3};
  if (width == to_width) return resize_rows(from, height, to_height, width);
  std::vector<std::uint8_t> columns = resize_columns(from, height, width, to_width);
  return height == to_height ? columns : resize_rows(columns.data(), height, to_height, to_width);
}

}  // namespace lockstep
