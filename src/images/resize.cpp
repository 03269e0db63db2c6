// Method: a triangle as wide as one output pixel (never narrower than one input pixel), columns first, then rows, each pass rounded
// to u8 with 22-bit fixed-point weights: Pillow's libImaging/Resample.c, whose rounding is kept so that tests can ask for equality.
#include "images/resize.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep {
namespace {

constexpr int precision_bits = 22;

/// `covered` of `from` input positions are spread over `to` output positions.
ResizeWeights triangle_weights(std::int64_t from, double covered, std::int64_t to) {
  const double scale = covered / static_cast<double>(to), support = std::max(scale, 1.0);
  ResizeWeights w;
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

}  // namespace

Resize::Resize(std::int64_t height, std::int64_t width, double covered_height, double covered_width, std::int64_t to_height, std::int64_t to_width)
    : width_(width), to_height_(to_height), to_width_(to_width), keeps_width_(covered_width == static_cast<double>(to_width)),
      keeps_height_(covered_height == static_cast<double>(to_height)) {
  if (!keeps_width_) columns_ = triangle_weights(width, covered_width, to_width);
  if (!keeps_height_) lines_ = triangle_weights(height, covered_height, to_height);
}

void Resize::add_row(const std::uint8_t* rgb) {
  const std::size_t begin = narrow_.size();
  narrow_.resize(begin + static_cast<std::size_t>(3 * to_width_));   // as rows come: a header may promise any number
  std::uint8_t* target = narrow_.data() + begin;
  if (keeps_width_) {
    std::copy(rgb, rgb + 3 * width_, target);
    return;
  }
  const std::int32_t* weights = columns_.values.data();
  for (std::size_t x = 0; std::cmp_less(x, to_width_); ++x, target += 3, weights += columns_.taps) {
    const std::uint8_t* pixel = rgb + 3 * columns_.first[x];
    const int count = columns_.count[x];
    std::int32_t r = half, g = half, b = half;
    for (int k = 0; k < count; ++k, pixel += 3) {
      r += pixel[0] * weights[k];
      g += pixel[1] * weights[k];
      b += pixel[2] * weights[k];
    }
    target[0] = rounded(r), target[1] = rounded(g), target[2] = rounded(b);
  }
}

std::vector<std::uint8_t> Resize::result() {
  if (keeps_height_) return std::move(narrow_);
  const auto bytes = static_cast<std::size_t>(to_width_ * 3);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(to_height_) * bytes);
  std::vector<std::int32_t> sums(bytes);
  for (std::size_t y = 0; std::cmp_less(y, to_height_); ++y) {
    std::fill(sums.begin(), sums.end(), half);
    for (int k = 0; k < lines_.count[y]; ++k) {
      const std::int32_t weight = lines_.values[y * static_cast<std::size_t>(lines_.taps) + static_cast<std::size_t>(k)];
      const std::uint8_t* row = narrow_.data() + static_cast<std::size_t>(lines_.first[y] + k) * bytes;
      for (std::size_t i = 0; i < bytes; ++i) sums[i] += row[i] * weight;
    }
    std::transform(sums.begin(), sums.end(), out.data() + y * bytes, rounded);
  }
  return out;
}

}  // namespace lockstep
