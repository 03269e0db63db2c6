// Convolution and linear layers against float64 loops and finite differences; how their parameters are described.
#include <gtest/gtest.h>

#include "layers/layers.hpp"
#include "support/layers_reference.hpp"
#include "support/layers_run.hpp"

namespace lockstep::test {
namespace {

struct Case {
  Shape x;
  std::int64_t out, kernel, stride, pad;
  bool bias;
};

/// w [k, r, s, c]; b [k] or empty.
Doubles conv_loop(const Case& p, const Shape& out, const Doubles& x, const Doubles& w, const Doubles& b) {
  Doubles y;
  for (std::int64_t n = 0; n < out.n; ++n)
    for (std::int64_t i = 0; i < out.h; ++i)
      for (std::int64_t j = 0; j < out.w; ++j)
        for (std::int64_t k = 0; k < p.out; ++k) {
          double sum = b.empty() ? 0 : b[static_cast<std::size_t>(k)];
          for (std::int64_t r = 0; r < p.kernel; ++r)
            for (std::int64_t s = 0; s < p.kernel; ++s) {
              const std::int64_t h = i * p.stride + r - p.pad, v = j * p.stride + s - p.pad;
              if (h < 0 || h >= p.x.h || v < 0 || v >= p.x.w) continue;
              for (std::int64_t c = 0; c < p.x.c; ++c)
                sum += x[static_cast<std::size_t>(((n * p.x.h + h) * p.x.w + v) * p.x.c + c)] *
                       w[static_cast<std::size_t>(((k * p.kernel + r) * p.kernel + s) * p.x.c + c)];
            }
          y.push_back(sum);
        }
  return y;
}

TEST(Conv, ForwardAndAllGradientsEqualTheLoopAndItsFiniteDifferences) {
  Device device;
  for (const Case& p : {Case{{2, 5, 6, 3}, 4, 3, 1, 1, false}, Case{{2, 5, 6, 3}, 5, 3, 2, 1, true}, Case{{1, 4, 4, 6}, 3, 1, 2, 0, false},
                        Case{{1, 7, 7, 2}, 4, 5, 1, 0, true}}) {
    SCOPED_TRACE(text_of(text(p.x), " -> ", p.out, " kernel ", p.kernel, " stride ", p.stride));
    Graph graph(p.x);
    const Shape out = conv(graph.input(), "conv", {.out = p.out, .kernel = p.kernel, .stride = p.stride, .pad = p.pad, .bias = p.bias,
                                                   .weight_init = {}, .bias_init = {}}).shape();
    LayersRun run(device, graph);
    const std::int64_t weights = p.out * p.kernel * p.kernel * p.x.c;
    const auto x = noise(p.x.size(), 1), w = noise(weights, 2), b = noise(p.bias ? p.out : 0, 3), dy = noise(out.size(), 4);
    run.put_input(x), run.put_weight(0, w);
    if (p.bias) run.put_weight(1, b);
    run.forward();
    run.backward(dy);
    const double tolerance = 8 * rounding(DType::f32) * std::sqrt(static_cast<double>(std::max(weights / p.out, out.size() / p.out)));
    const Doubles x64 = doubles(x), w64 = doubles(w), b64 = doubles(b);
    EXPECT_LE(distance(conv_loop(p, out, x64, w64, b64), run.output()), tolerance);
    EXPECT_LE(distance(finite_differences([&](const Doubles& v) { return conv_loop(p, out, v, w64, b64); }, x64, doubles(dy)), run.grad_input()), tolerance);
    EXPECT_LE(distance(finite_differences([&](const Doubles& v) { return conv_loop(p, out, x64, v, b64); }, w64, doubles(dy)), run.grad_weight(0)), tolerance);
    if (p.bias) {
      EXPECT_LE(distance(finite_differences([&](const Doubles& v) { return conv_loop(p, out, x64, w64, v); }, b64, doubles(dy)), run.grad_weight(1)), tolerance);
    }

    const auto once = run.grad_weight(0);
    run.backward(dy, GradMode::add);
    Doubles twice = doubles(once);
    for (double& v : twice) v *= 2;
    EXPECT_LE(distance(twice, run.grad_weight(0)), tolerance);
  }
}

TEST(Conv, DescribesItsParametersAsTorchvisionDoes) {
  Graph graph({2, 8, 8, 3});
  conv(graph.input(), "conv1", {.out = 16, .kernel = 5, .stride = 2, .bias = true, .weight_init = {Init::normal, 0.1}, .bias_init = {}});
  const auto specs = graph.parameter_specs();
  ASSERT_EQ(specs.size(), 2u);
  EXPECT_EQ(specs[0].name, "conv1.weight");
  EXPECT_EQ(specs[0].shape, (Shape{16, 5, 5, 3}));
  EXPECT_EQ(specs[0].file_shape, (std::vector<std::int64_t>{16, 3, 5, 5}));
  EXPECT_EQ(specs[0].layout.kind, ParameterLayout::convolution);
  EXPECT_FALSE(specs[0].is_norm_or_bias);
  EXPECT_EQ(specs[1].name, "conv1.bias");
  EXPECT_TRUE(specs[1].is_norm_or_bias);
  EXPECT_EQ(graph.shape(graph.output()), (Shape{2, 4, 4, 16}));   // pad 2 by default: half the kernel
}

TEST(Conv, RefusesAnImageSmallerThanItsKernel) {
  Graph graph({1, 4, 4, 3});
  EXPECT_THROW(conv(graph.input(), "conv1", {.out = 2, .kernel = 7, .pad = 0, .weight_init = {}, .bias_init = {}}), Error);
}

TEST(Linear, FlattensAnImageInMemoryOrderAndSaysHowFilesHoldIt) {
  Device device;
  for (const Shape x_shape : {Shape{3, 1, 1, 21}, Shape{3, 2, 3, 5}}) {
    SCOPED_TRACE(text(x_shape));
    Graph graph(x_shape);
    const Shape out = linear(graph.input(), "fc", {.out = 4, .weight_init = {}, .bias_init = {}}).shape();
    EXPECT_EQ(out, (Shape{3, 1, 1, 4}));
    const std::int64_t terms = x_shape.image_size();
    const ParameterSpec& weight = graph.parameter_specs()[0];
    EXPECT_EQ(weight.shape, x_shape.with_batch(4));
    EXPECT_EQ(weight.file_shape, (std::vector<std::int64_t>{4, terms}));
    const bool flattens = x_shape.h > 1;
    EXPECT_EQ(weight.layout.kind, flattens ? ParameterLayout::flattened_linear : ParameterLayout::as_is);
    EXPECT_EQ(weight.layout.image, flattens ? x_shape.with_batch(1) : Shape{});
    LayersRun run(device, graph);
    const auto x = noise(x_shape.size(), 1), w = noise(4 * terms, 2), b = noise(4, 3), dy = noise(out.size(), 4);
    run.put_input(x), run.put_weight(0, w), run.put_weight(1, b);
    run.forward();
    run.backward(dy);
    const Case p{{3, 1, 1, terms}, 4, 1, 1, 0, true};
    const Doubles x64 = doubles(x), w64 = doubles(w), b64 = doubles(b);
    const double tolerance = 8 * rounding(DType::f32) * std::sqrt(static_cast<double>(terms));
    EXPECT_LE(distance(conv_loop(p, out, x64, w64, b64), run.output()), tolerance);
    EXPECT_LE(distance(finite_differences([&](const Doubles& v) { return conv_loop(p, out, v, w64, b64); }, x64, doubles(dy)), run.grad_input()), tolerance);
    EXPECT_LE(distance(finite_differences([&](const Doubles& v) { return conv_loop(p, out, x64, v, b64); }, w64, doubles(dy)), run.grad_weight(0)), tolerance);
    EXPECT_LE(distance(finite_differences([&](const Doubles& v) { return conv_loop(p, out, x64, w64, v); }, b64, doubles(dy)), run.grad_weight(1)), tolerance);
  }
}

TEST(Conv, SmallerBatchesFrozenParametersAndNoImages) {
  Device device;
  const Case p{{4, 4, 4, 3}, 5, 3, 1, 1, true};
  Graph graph(p.x);
  const Shape out = conv(graph.input(), "conv", {.out = p.out, .bias = true, .weight_init = {}, .bias_init = {}}).shape().with_batch(3);
  LayersRun run(device, graph);
  const auto x = noise(3 * p.x.image_size(), 1), w = noise(5 * 27, 2), b = noise(5, 3), dy = noise(out.size(), 4);
  run.use_batch(3);
  run.put_input(x), run.put_weight(0, w), run.put_weight(1, b);
  run.forward();
  run.backward(dy);
  const auto grad_weight = run.grad_weight(0), grad_bias = run.grad_weight(1), grad_x = run.grad_input();
  EXPECT_LE(distance(conv_loop({{3, 4, 4, 3}, 5, 3, 1, 1, true}, out, doubles(x), doubles(w), doubles(b)), run.output()), 64 * rounding(DType::f32));

  run.use_batch(0);
  run.forward();
  run.backward({});
  EXPECT_EQ(run.grad_weight(0), std::vector<float>(grad_weight.size(), 0));
  EXPECT_EQ(run.grad_weight(1), std::vector<float>(grad_bias.size(), 0));

  run.use_batch(3);
  run.put_input(x);
  run.forward();
  run.freeze(1);
  run.backward(dy);
  EXPECT_EQ(run.grad_weight(0), grad_weight);
  run.freeze(0);
  run.backward(dy);
  EXPECT_EQ(run.grad_input(), grad_x);
}

}  // namespace
}  // namespace lockstep::test
