// Pooling against float64 loops and PyTorch's rules.
#include <gtest/gtest.h>

#include "layers/layers.hpp"
#include "support/layers_reference.hpp"
#include "support/layers_run.hpp"

namespace lockstep::test {
namespace {

struct MaxPoolCase {
  Shape x;
  std::int64_t kernel, stride, pad;
};

std::size_t index(const Shape& s, std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c) {
  return static_cast<std::size_t>(((n * s.h + h) * s.w + w) * s.c + c);
}

struct PoolResult {
  Doubles y, dx;
};

PoolResult max_pool_loop(const MaxPoolCase& p, const Shape& out, const std::vector<float>& x, const std::vector<float>& dy) {
  PoolResult r{Doubles(static_cast<std::size_t>(out.size())), Doubles(x.size(), 0)};
  for (std::int64_t n = 0; n < out.n; ++n)
    for (std::int64_t i = 0; i < out.h; ++i)
      for (std::int64_t j = 0; j < out.w; ++j)
        for (std::int64_t c = 0; c < out.c; ++c) {
          double best = -std::numeric_limits<double>::infinity();
          std::size_t at = 0;
          for (std::int64_t h = i * p.stride - p.pad; h < i * p.stride - p.pad + p.kernel; ++h)
            for (std::int64_t w = j * p.stride - p.pad; w < j * p.stride - p.pad + p.kernel; ++w)
              if (h >= 0 && h < p.x.h && w >= 0 && w < p.x.w && x[index(p.x, n, h, w, c)] > best) at = index(p.x, n, h, w, c), best = x[at];
          r.y[index(out, n, i, j, c)] = best;
          r.dx[at] += dy[index(out, n, i, j, c)];
        }
  return r;
}

TEST(MaxPool, EqualsTheLoopForwardAndBackward) {
  Device device;
  for (const MaxPoolCase& p : {MaxPoolCase{{2, 8, 8, 16}, 2, 2, 0}, MaxPoolCase{{2, 9, 7, 19}, 3, 2, 1}, MaxPoolCase{{1, 7, 7, 6}, 3, 2, 0},
                               MaxPoolCase{{2, 5, 6, 33}, 3, 1, 1}, MaxPoolCase{{1, 6, 6, 4}, 2, 3, 1}})
    for (const DType dtype : compute_types()) {
      SCOPED_TRACE(text_of(text(p.x), " kernel ", p.kernel, " stride ", p.stride, " pad ", p.pad, " ", name_of(dtype)));
      Graph graph(p.x);
      const Shape out = max_pool(graph.input(), p.kernel, p.stride, p.pad).shape();
      EXPECT_EQ(out.h, (p.x.h + 2 * p.pad - p.kernel) / p.stride + 1);
      LayersRun run(device, graph, {.dtype = dtype});
      const auto x = noise(p.x.size(), 1, 1, 0, dtype), dy = noise(out.size(), 2, 1, 0, dtype);
      const PoolResult want = max_pool_loop(p, out, x, dy);
      run.put_input(x);
      run.forward();
      run.backward(dy);
      EXPECT_EQ(distance(want.y, run.output()), 0);
      EXPECT_LE(distance(want.dx, run.grad_input()), rounding(dtype));   // sums of at most nine, rounded once
      run.forward(Mode::evaluation);
      EXPECT_EQ(distance(want.y, run.output()), 0);
    }
}

TEST(MaxPool, TheFirstOfEqualsGetsTheGradientAndNaNWins) {
  Device device;
  Graph graph({1, 2, 2, 1});
  max_pool(graph.input(), 2, 2);
  LayersRun run(device, graph);
  run.put_input({1, 3, 3, 3});
  run.forward();
  run.backward({5});
  EXPECT_EQ(run.grad_input(), (std::vector<float>{0, 5, 0, 0}));
  run.put_input({1, std::nanf(""), 3, 4});
  run.forward();
  EXPECT_TRUE(std::isnan(run.output()[0]));
  const float least = -std::numeric_limits<float>::infinity();
  run.put_input({least, least, least, least});
  run.forward();
  run.backward({5});
  EXPECT_EQ(run.output()[0], least);
  EXPECT_EQ(run.grad_input(), (std::vector<float>{5, 0, 0, 0}));
}

TEST(AveragePool, EqualsPyTorchsBinsForwardAndBackward) {
  Device device;
  for (const auto& [x_shape, out] : {std::pair{Shape{2, 8, 8, 64}, 1}, std::pair{Shape{2, 7, 5, 19}, 3}, std::pair{Shape{1, 6, 6, 16}, 6},
                                     std::pair{Shape{1, 3, 2, 5}, 4}})
    for (const DType dtype : compute_types()) {
      SCOPED_TRACE(text_of(text(x_shape), " -> ", out, " ", name_of(dtype)));
      Graph graph(x_shape);
      const Shape shape = x_shape, y_shape = average_pool(graph.input(), out).shape();
      LayersRun run(device, graph, {.dtype = dtype});
      const auto x = noise(shape.size(), 1, 1, 0, dtype), dy = noise(y_shape.size(), 2, 1, 0, dtype);
      Doubles y(static_cast<std::size_t>(y_shape.size()), 0), dx(x.size(), 0);
      for (std::int64_t n = 0; n < y_shape.n; ++n)
        for (std::int64_t i = 0; i < y_shape.h; ++i)
          for (std::int64_t j = 0; j < y_shape.w; ++j) {
            const auto begin = [&](std::int64_t bin, std::int64_t extent) { return static_cast<std::int64_t>(std::floor(static_cast<double>(bin * extent) / out)); };
            const auto end = [&](std::int64_t bin, std::int64_t extent) { return static_cast<std::int64_t>(std::ceil(static_cast<double>((bin + 1) * extent) / out)); };
            const std::int64_t h0 = begin(i, shape.h), h1 = end(i, shape.h), w0 = begin(j, shape.w), w1 = end(j, shape.w);
            for (std::int64_t h = h0; h < h1; ++h)
              for (std::int64_t w = w0; w < w1; ++w)
                for (std::int64_t c = 0; c < shape.c; ++c) {
                  const double area = static_cast<double>((h1 - h0) * (w1 - w0));
                  y[index(y_shape, n, i, j, c)] += x[index(shape, n, h, w, c)] / area;
                  dx[index(shape, n, h, w, c)] += dy[index(y_shape, n, i, j, c)] / area;
                }
          }
      run.put_input(x);
      run.forward();
      run.backward(dy);
      EXPECT_LE(distance(y, run.output()), 8 * rounding(DType::f32) + rounding(dtype));   // a sum of 64: root of its length
      EXPECT_LE(distance(dx, run.grad_input()), 4 * rounding(DType::f32) + rounding(dtype));
    }
}

TEST(Pool, GradientsAddToWhatIsThere) {
  Device device;
  Graph graph({2, 4, 4, 17});
  const Value a = max_pool(graph.input(), 4, 4), b = average_pool(graph.input(), 1);
  add(a, b);
  LayersRun run(device, graph);
  const auto x = noise(2 * 16 * 17, 1), dy = noise(2 * 17, 2);
  run.put_input(x);
  run.forward();
  run.backward(dy);
  const PoolResult largest = max_pool_loop({{2, 4, 4, 17}, 4, 4, 0}, {2, 1, 1, 17}, x, dy);
  Doubles want = largest.dx;
  for (std::size_t i = 0; i < want.size(); ++i) want[i] += dy[i / (16 * 17) * 17 + i % 17] / 16.0;
  EXPECT_LE(distance(want, run.grad_input()), 2 * rounding(DType::f32));
}

TEST(Pool, AnEmptyBatchIsNoWork) {
  Device device;
  Graph graph({2, 4, 4, 3});
  average_pool(max_pool(graph.input(), 2, 2), 1);
  LayersRun run(device, graph);
  run.use_batch(0);
  run.forward();
  run.backward({});
  EXPECT_TRUE(run.output().empty());
}

}  // namespace
}  // namespace lockstep::test
