// layers_batch_norm: batch norm (+ addition) (+ relu) as a plain float64 loop.
#pragma once
#include "support/layers_reference.hpp"

namespace lockstep::test {

struct BatchNormCase {
  Shape shape;
  bool has_add = false, has_relu = false;
  std::string name() const { return text_of(text(shape), has_add ? " + add" : "", has_relu ? " + relu" : ""); }
};

struct Moments {
  Doubles mean, variance;                // biased
};
inline Moments moments(const Doubles& x, std::size_t c) {
  Moments m{Doubles(c, 0), Doubles(c, 0)};
  const double rows = static_cast<double>(x.size() / c);
  for (std::size_t i = 0; i < x.size(); ++i) m.mean[i % c] += x[i] / rows;
  for (std::size_t i = 0; i < x.size(); ++i) m.variance[i % c] += (x[i] - m.mean[i % c]) * (x[i] - m.mean[i % c]) / rows;
  return m;
}

/// residual empty: no addition.
inline Doubles normalize(const Doubles& x, const Moments& m, const Doubles& weight, const Doubles& bias, const Doubles& residual, bool has_relu) {
  Doubles y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t k = i % weight.size();
    y[i] = (x[i] - m.mean[k]) / std::sqrt(m.variance[k] + 1e-5) * weight[k] + bias[k] + (residual.empty() ? 0 : residual[i]);
    if (has_relu) y[i] = std::max(y[i], 0.0);
  }
  return y;
}

}  // namespace lockstep::test
