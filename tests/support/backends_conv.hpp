// backends_conv: one convolution on a backend, and the same as a plain float64 loop.
// Every number is first rounded to the problem's dtype, so that both see equal inputs and differ by the backend's own rounding alone.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backends/conv.hpp"
#include "support/test_tensor.hpp"

namespace lockstep::test {

/// What a convolution reads: the `from_*` are there before a gradient is added to.
struct ConvInputs {
  Numbers x, weight, bias, grad_y, from_x, from_weight, from_bias;
};
struct ConvResult {
  Numbers y, grad_x, grad_weight, grad_bias;
};

inline double rounded(double value, DType dtype) {
  const float narrow = static_cast<float>(value);
  return dtype == DType::f16 ? static_cast<float>(f16(narrow)) : dtype == DType::bf16 ? static_cast<float>(bf16(narrow)) : narrow;
}

/// Normal numbers for `n` images.
inline ConvInputs random_inputs(const ConvProblem& p, std::int64_t n, unsigned seed = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  const auto draw = [&](std::int64_t count, DType dtype) {
    Numbers numbers(static_cast<std::size_t>(count));
    for (double& number : numbers) number = rounded(normal(engine), dtype);
    return numbers;
  };
  const std::int64_t x = p.input().with_batch(n).size(), y = p.output().with_batch(n).size(), weight = p.weight().size();
  return {draw(x, p.dtype), draw(weight, p.dtype), draw(p.k, DType::f32), draw(y, p.dtype), draw(x, p.dtype), draw(weight, DType::f32), draw(p.k, DType::f32)};
}

/// The definition, written down.
inline ConvResult reference_conv(const ConvProblem& o, std::int64_t n, const ConvInputs& in, bool adds) {
  const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  ConvResult out{Numbers(size(n * o.p() * o.q() * o.k)), adds ? in.from_x : Numbers(in.x.size()), adds ? in.from_weight : Numbers(in.weight.size()),
                 adds ? in.from_bias : Numbers(size(o.k))};
  for (std::int64_t image = 0; image < n; ++image)
    for (std::int64_t p = 0; p < o.p(); ++p)
      for (std::int64_t q = 0; q < o.q(); ++q)
        for (std::int64_t k = 0; k < o.k; ++k) {
          const std::size_t at_y = size(((image * o.p() + p) * o.q() + q) * o.k + k);
          out.y[at_y] = o.has_bias ? in.bias[size(k)] : 0;
          out.grad_bias[size(k)] += in.grad_y[at_y];
          for (std::int64_t r = 0; r < o.r; ++r)
            for (std::int64_t s = 0; s < o.s; ++s) {
              const std::int64_t h = p * o.stride - o.pad + r, w = q * o.stride - o.pad + s;
              if (h < 0 || h >= o.h || w < 0 || w >= o.w) continue;
              for (std::int64_t c = 0; c < o.c; ++c) {
                const std::size_t at_x = size(((image * o.h + h) * o.w + w) * o.c + c), at_weight = size(((k * o.r + r) * o.s + s) * o.c + c);
                out.y[at_y] += in.x[at_x] * in.weight[at_weight];
                out.grad_x[at_x] += in.grad_y[at_y] * in.weight[at_weight];
                out.grad_weight[at_weight] += in.grad_y[at_y] * in.x[at_x];
              }
            }
        }
  return out;
}

/// Of all three calls.
inline std::int64_t most_workspace(const ConvOp& op) { return static_cast<std::int64_t>(std::max(op.workspace_bytes(), op.weight_workspace_bytes())); }

struct ConvRun {
  ConvResult result;
  bool stayed_inside = true;   // no byte was written behind a tensor or the workspace
};

/// All three calls on `n` images.  Results and workspace hold NaN before them.
inline ConvRun run_conv(Device& device, ConvOp& op, std::int64_t n, const ConvInputs& in, bool adds) {
  const ConvProblem& p = op.problem();
  const Shape x_shape = p.input().with_batch(n), y_shape = p.output().with_batch(n), k_shape = vector_shape(p.k);
  const TestTensor x(device, x_shape, p.dtype, in.x), weight(device, p.weight(), p.dtype, in.weight), bias(device, k_shape, DType::f32, in.bias);
  const TestTensor grad_y(device, y_shape, p.dtype, in.grad_y), y(device, y_shape, p.dtype);
  const Numbers none;
  const TestTensor grad_x(device, x_shape, p.dtype, adds ? in.from_x : none), grad_weight(device, p.weight(), DType::f32, adds ? in.from_weight : none);
  const TestTensor grad_bias(device, k_shape, DType::f32, adds ? in.from_bias : none);
  const GradMode mode = adds ? GradMode::add : GradMode::write;
  ConvRun run;
  const auto call = [&](auto&& method, ConvArguments a) {
    const TestTensor workspace(device, vector_shape(most_workspace(op)), DType::u8);
    a.workspace = workspace, a.mode = mode;
    method(a);
    run.stayed_inside = run.stayed_inside && workspace.is_margin_intact();
  };
  call([&](const ConvArguments& a) { op.forward(device, a); }, {.x = x, .weight = weight, .bias = p.has_bias ? Tensor(bias) : Tensor{}, .y = y});
  call([&](const ConvArguments& a) { op.grad_input(device, a); }, {.weight = weight, .grad_y = grad_y, .grad_x = grad_x});
  call([&](const ConvArguments& a) { op.grad_weight(device, a); },
       {.x = x, .grad_y = grad_y, .grad_weight = grad_weight, .grad_bias = p.has_bias ? Tensor(grad_bias) : Tensor{}});
  for (const TestTensor* tensor : {&y, &grad_x, &grad_weight, &grad_bias}) run.stayed_inside = run.stayed_inside && tensor->is_margin_intact();
  run.result = {y.numbers(), grad_x.numbers(), grad_weight.numbers(), grad_bias.numbers()};
  return run;
}

/// Largest difference over the root mean square of what is wanted; NaN counts as infinite.
inline double distance(const Numbers& want, const Numbers& got) {
  if (want.size() != got.size()) return std::numeric_limits<double>::infinity();
  double square = 0, largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    square += want[i] * want[i];
    largest = std::max(largest, std::abs(want[i] - got[i]));
  }
  return largest == 0 ? 0 : largest / std::sqrt(square / static_cast<double>(want.size()));
}

/// What `distance` may be for sums of `terms` products, accumulated in f32 and stored as `stored`.
/// A sum of t random terms grows as sqrt(i) and takes a rounding of 2^-24 of itself at each step, which together make 2^-24 sqrt(t / 2) of the
/// result's own size; the worst of a million sums lies within five of these.  Storing adds half a unit of the last place of the largest
/// result, which is at most six times the mean.
inline double rounding_of_sums(std::int64_t terms, DType stored) {
  const double unit = stored == DType::f16 ? std::ldexp(1, -11) : stored == DType::bf16 ? std::ldexp(1, -8) : std::ldexp(1, -24);
  return 5 * std::ldexp(1, -24) * std::sqrt(static_cast<double>(terms)) + 6 * unit;
}

}  // namespace lockstep::test
