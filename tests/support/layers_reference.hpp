// layers_reference: truths for layers: float64 functions, their gradients by central differences, and distances between answers.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/random.hpp"
#include "tensor/tensor.hpp"

namespace lockstep::test {

using Doubles = std::vector<double>;

/// Normal numbers, rounded to the element type so that the reference sees what the layer sees.
inline std::vector<float> noise(std::int64_t count, std::uint64_t stream, double scale = 1, double offset = 0, DType dtype = DType::f32) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto v = static_cast<float>(offset + scale * normal(11, Purpose::bench, stream, static_cast<std::uint64_t>(i)));
    values.push_back(dispatch(dtype, [&]<class T>(T) { return static_cast<float>(T(v)); }));
  }
  return values;
}
inline Doubles doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

/// |got - want| / |want|, root mean square; infinity when a number is not finite or the sizes differ.
inline double distance(const Doubles& want, const std::vector<float>& got) {
  if (want.size() != got.size()) return std::numeric_limits<double>::infinity();
  double error = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) error += (want[i] - got[i]) * (want[i] - got[i]), size += want[i] * want[i];
  const double d = size == 0 ? std::sqrt(error) : std::sqrt(error / size);
  return std::isfinite(d) ? d : std::numeric_limits<double>::infinity();
}
inline double distance(const std::vector<float>& want, const std::vector<float>& got) { return distance(doubles(want), got); }

/// Half the gap between neighbouring numbers of this type, relative.
inline double rounding(DType dtype) { return dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8; }

/// d(sum of grad_out * f(x)) / dx by central differences.  With float64 and smooth f the error is about 1e-9; callers keep x off f's kinks.
inline Doubles finite_differences(const std::function<Doubles(const Doubles&)>& f, Doubles x, const Doubles& grad_out) {
  const double step = 1e-5;
  Doubles gradient;
  const auto weighted = [&] {
    const Doubles y = f(x);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * grad_out[i];
    return sum;
  };
  for (double& element : x) {
    const double before = element;
    element = before + step;
    const double above = weighted();
    element = before - step;
    gradient.push_back((above - weighted()) / (2 * step));
    element = before;
  }
  return gradient;
}

inline const std::vector<DType>& compute_types() {
  static const std::vector<DType> types{DType::f32, DType::f16, DType::bf16};
  return types;
}

}  // namespace lockstep::test
