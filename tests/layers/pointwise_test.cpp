// Elementwise layers against float64 loops, and dropout's numbers.
#include <gtest/gtest.h>

#include "layers/layers.hpp"
#include "support/layers_reference.hpp"
#include "support/layers_run.hpp"

namespace lockstep::test {
namespace {

constexpr Shape images{3, 5, 4, 7};

TEST(Relu, ForwardAndBackwardEqualTheLoopWithAndWithoutOverlap) {
  Device device;
  for (const DType dtype : compute_types())
    for (const bool overlaps : {false, true}) {
      SCOPED_TRACE(text_of(name_of(dtype), overlaps ? ", overlapping" : ""));
      Graph graph(images);
      relu(dropout(graph.input(), 0, 0));   // keeps nothing, so that the relu may lie over its input
      LayersRun run(device, graph, {.dtype = dtype, .overlaps = overlaps});
      const auto x = noise(images.size(), 1, 1, 0, dtype), dy = noise(images.size(), 2, 1, 0, dtype);
      run.put_input(x);
      run.forward();
      const auto y = run.output();
      run.backward(dy);
      const auto dx = run.grad_input();
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(y[i], x[i] > 0 ? x[i] : 0);
        EXPECT_EQ(dx[i], x[i] > 0 ? dy[i] : 0);
      }
    }
}

TEST(Relu, PassesNaNOnSoThatALossShowsIt) {
  Device device;
  Graph graph({1, 1, 1, 2});
  relu(graph.input());
  LayersRun run(device, graph);
  run.put_input({std::nanf(""), -1});
  run.forward();
  EXPECT_TRUE(std::isnan(run.output()[0]));
  EXPECT_EQ(run.output()[1], 0);
}

TEST(Add, SumsAndHandsItsGradientToBothInputs) {
  Device device;
  for (const DType dtype : compute_types()) {
    Graph graph(images);
    add(graph.input(), relu(graph.input()));   // the input has two readers: its gradient is written, then added to
    LayersRun run(device, graph, {.dtype = dtype});
    const auto x = noise(images.size(), 1, 1, 0, dtype), dy = noise(images.size(), 2, 1, 0, dtype);
    run.put_input(x);
    run.forward();
    run.backward(dy);
    Doubles y, dx;
    for (std::size_t i = 0; i < x.size(); ++i) y.push_back(x[i] > 0 ? 2 * x[i] : x[i]), dx.push_back(x[i] > 0 ? 2 * dy[i] : dy[i]);
    EXPECT_LE(distance(y, run.output()), rounding(dtype));
    EXPECT_LE(distance(dx, run.grad_input()), rounding(dtype));
  }
}

TEST(Add, RefusesUnequalShapes) {
  Graph graph(images);
  EXPECT_THROW(add(graph.input(), subsample_pad(graph.input(), 1, 8)), Error);
}

TEST(SubsamplePad, TakesEveryStridethPixelAndPadsChannelsOnBothSides) {
  Device device;
  for (const std::int64_t stride : {1, 2, 3})
    for (const std::int64_t channels : {7, 10, 14}) {
      SCOPED_TRACE(text_of("stride ", stride, ", channels ", channels));
      Graph graph(images);
      const Shape out = subsample_pad(graph.input(), stride, channels).shape();
      EXPECT_EQ(out, (Shape{3, (5 + stride - 1) / stride, (4 + stride - 1) / stride, channels}));
      LayersRun run(device, graph);
      const auto x = noise(images.size(), 1), dy = noise(out.size(), 2);
      run.put_input(x);
      run.forward();
      run.backward(dy);
      Doubles y(static_cast<std::size_t>(out.size()), 0), dx(x.size(), 0);
      const std::int64_t before = (channels - 7) / 2;
      for (std::int64_t n = 0; n < out.n; ++n)
        for (std::int64_t p = 0; p < out.h; ++p)
          for (std::int64_t q = 0; q < out.w; ++q)
            for (std::int64_t k = 0; k < 7; ++k) {
              const auto from = static_cast<std::size_t>(((n * 5 + p * stride) * 4 + q * stride) * 7 + k);
              const auto to = static_cast<std::size_t>(((n * out.h + p) * out.w + q) * channels + before + k);
              y[to] = x[from], dx[from] = dy[to];
            }
      EXPECT_EQ(distance(y, run.output()), 0);
      EXPECT_EQ(distance(dx, run.grad_input()), 0);
    }
}

TEST(Dropout, ZeroesAboutPScalesTheRestAndDrawsTheSameInBackward) {
  Device device;
  const Shape shape{16, 1, 1, 4099};     // not a multiple of 4: images start within a block of numbers
  Graph graph(shape);
  dropout(graph.input(), 0.3, 0);
  LayersRun run(device, graph);
  const std::vector<float> ones(static_cast<std::size_t>(shape.size()), 1);
  run.put_input(ones);
  run.forward();
  run.backward(ones);
  const auto y = run.output();
  EXPECT_EQ(y, run.grad_input());
  std::int64_t kept = 0;
  for (const float v : y) {
    EXPECT_TRUE(v == 0 || std::abs(v - 1 / 0.7f) < 1e-6f) << v;
    kept += v != 0;
  }
  const double mean = 0.7 * static_cast<double>(shape.size()), deviation = std::sqrt(mean * 0.3);
  EXPECT_LT(std::abs(static_cast<double>(kept) - mean), 5 * deviation);
  run.forward(Mode::evaluation);
  EXPECT_EQ(run.output(), ones);
}

TEST(Dropout, DependsOnSeedStepLayerAndPlaceInTheGlobalBatchAlone) {
  Device device;
  const std::int64_t whole = 12, image = 31;
  const auto draw = [&](std::int64_t count, std::int64_t first, std::int64_t seed, std::int64_t step, int index) {
    Graph graph({count, 1, 1, image});
    dropout(graph.input(), 0.5, index);
    LayersRun run(device, graph);
    StepState state;
    state.seed = seed, state.step = step, state.first_sample = first;
    run.put_step(state);
    run.put_input(std::vector<float>(static_cast<std::size_t>(count * image), 1));
    run.forward();
    return run.output();
  };
  const auto all = draw(whole, 0, 5, 9, 1);
  std::vector<float> pieces;
  for (const auto& [first, count] : {std::pair{0, 5}, std::pair{5, 1}, std::pair{6, 6}}) {
    const auto piece = draw(count, first, 5, 9, 1);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(all, pieces);
  const auto agreement = [&](const std::vector<float>& other) {
    int equal = 0;
    for (std::size_t i = 0; i < all.size(); ++i) equal += all[i] == other[i];
    return equal / static_cast<double>(all.size());
  };
  for (const auto& other : {draw(whole, 0, 6, 9, 1), draw(whole, 0, 5, 10, 1), draw(whole, 0, 5, 9, 2), draw(whole, 12, 5, 9, 1)})
    EXPECT_NEAR(agreement(other), 0.5, 0.13);   // five deviations of 372 coin tosses
}

TEST(Pointwise, AnEmptyBatchIsNoWork) {
  Device device;
  Graph graph(images);
  dropout(subsample_pad(add(relu(graph.input()), graph.input()), 2, 10), 0.5, 0);
  LayersRun run(device, graph);
  run.use_batch(0);
  run.forward();
  run.backward({});
  EXPECT_TRUE(run.output().empty());
}

}  // namespace
}  // namespace lockstep::test
