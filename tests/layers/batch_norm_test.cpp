// Batch norm against a float64 loop and its finite differences, and its running statistics against PyTorch.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "layers/fusion.hpp"
#include "layers/layers.hpp"
#include "support/layers_batch_norm.hpp"
#include "support/layers_run.hpp"
#include "support/python.hpp"

namespace lockstep::test {
namespace {

/// As a sum over the ranks of a group that all hold what this one holds.
class EqualRanks final : public Exchange {
 public:
  explicit EqualRanks(float ranks) : ranks_(ranks) {}
  void sum(Device& device, Tensor values) override {
    std::vector<float> host(static_cast<std::size_t>(values.size()));
    device.copy_to_host(host.data(), values.data, values.bytes());
    for (float& v : host) v *= ranks_;
    device.copy_to_device(values.data, host.data(), values.bytes());
    device.wait();
    ++calls;
  }
  bool is_recordable() const override { return false; }
  bool is_direct() const override { return false; }
  int calls = 0;

 private:
  float ranks_;
};

/// value 0 -> x (a relu) and, behind it, the residual; so that every gradient is written to a tensor of its own.
struct Net {
  explicit Net(const BatchNormCase& p) : graph(p.shape) {
    Value y = batch_norm(graph.input(), "bn");
    if (p.has_add) residual = relu(graph.input()).id(), y = add(y, Value(&graph, residual));
    if (p.has_relu) y = relu(y);
    fuse(graph);
  }
  Graph graph;
  int residual = -1;
};

const std::vector<BatchNormCase>& cases() {
  static const std::vector<BatchNormCase> all{
      {{4, 3, 3, 16}, false, false}, {{4, 3, 3, 16}, false, true}, {{4, 3, 3, 16}, true, false}, {{4, 3, 3, 16}, true, true},
      {{3, 2, 2, 19}, true, true},   {{3, 2, 2, 19}, false, true}, {{6, 1, 1, 3}, false, false}, {{5, 7, 6, 2}, true, true}};
  return all;
}

struct Numbers {
  std::vector<float> x, dy, weight, bias, mean, var;
  explicit Numbers(const Shape& s, DType dtype = DType::f32)
      : x(noise(s.size(), 1, 2, 0.5, dtype)), dy(noise(s.size(), 2, 1, 0, dtype)), weight(noise(s.c, 3, 0.5, 1)), bias(noise(s.c, 4)),
        mean(noise(s.c, 5)), var(noise(s.c, 6, 0.1, 1)) {}
  void put(LayersRun& run) const {
    run.put_weight(0, weight), run.put_weight(1, bias), run.put_buffer(0, mean), run.put_buffer(1, var), run.put_input(x);
  }
};

Doubles positive(const Doubles& x) {
  Doubles y = x;
  for (double& v : y) v = std::max(v, 0.0);
  return y;
}

TEST(BatchNorm, ForwardAndAllGradientsEqualTheLoopAndItsFiniteDifferences) {
  Device device;
  for (const BatchNormCase& p : cases())
    for (const bool overlaps : {false, true}) {
      SCOPED_TRACE(p.name());
      Net net(p);
      const Numbers t(p.shape);
      LayersRun run(device, net.graph, {.overlaps = overlaps});
      t.put(run);
      run.forward();
      const auto y = run.output();
      run.backward(t.dy);

      const Doubles x = doubles(t.x), weight = doubles(t.weight), bias = doubles(t.bias);
      const auto loop = [&](const Doubles& in, const Doubles& w, const Doubles& b) {
        return normalize(in, moments(in, w.size()), w, b, p.has_add ? positive(in) : Doubles{}, p.has_relu);
      };
      // Rows are few, so a channel's variance may be small: its inverse amplifies rounding.
      const double tolerance = 64 * rounding(DType::f32);
      EXPECT_LE(distance(loop(x, weight, bias), y), tolerance);
      EXPECT_LE(distance(finite_differences([&](const Doubles& v) { return loop(v, weight, bias); }, x, doubles(t.dy)), run.grad_input()), tolerance);
      EXPECT_LE(distance(finite_differences([&](const Doubles& v) { return loop(x, v, bias); }, weight, doubles(t.dy)), run.grad_weight(0)), tolerance);
      EXPECT_LE(distance(finite_differences([&](const Doubles& v) { return loop(x, weight, v); }, bias, doubles(t.dy)), run.grad_weight(1)), tolerance);
    }
}

TEST(BatchNorm, SixteenBitActivationsKeepFloatStatistics) {
  Device device;
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const BatchNormCase& p : {BatchNormCase{{8, 6, 6, 16}, false, true}, BatchNormCase{{8, 6, 6, 19}, true, true}}) {
      SCOPED_TRACE(text_of(p.name(), " ", name_of(dtype)));
      const Numbers t(p.shape, dtype);
      const auto run_as = [&](DType type) {
        Net net(p);
        LayersRun run(device, net.graph, {.dtype = type});
        t.put(run);
        run.forward();
        run.backward(t.dy);
        return std::tuple(run.output(), run.grad_input(), run.grad_weight(0), run.buffer(1));
      };
      const auto [y, dx, dw, var] = run_as(dtype);
      const auto [y32, dx32, dw32, var32] = run_as(DType::f32);
      EXPECT_LE(distance(y32, y), rounding(dtype));
      EXPECT_LE(distance(dx32, dx), 3 * rounding(dtype));   // the two gradients are rounded, then their sum
      EXPECT_LE(distance(dw32, dw), 2 * rounding(dtype));   // y > 0 may round to y = 0
      EXPECT_LE(distance(var32, var), 16 * rounding(DType::f32));   // the same numbers; a GPU cuts rows of another element type otherwise
    }
}

TEST(BatchNorm, StatisticsOfManyRowsFarFromZeroStayExact) {
  Device device;
  const Shape shape{32, 32, 32, 16};
  for (const double offset : {0.0, 10.0}) {   // in standard deviations, K = 0: the first step of a run
    Graph graph(shape);
    batch_norm(graph.input(), "bn", {.momentum = 1});
    LayersRun run(device, graph);
    const auto x = noise(shape.size(), 1, 1, offset);
    run.put_weight(0, std::vector<float>(16, 1)), run.put_weight(1, std::vector<float>(16, 0));
    run.put_input(x);
    run.forward();
    const Moments want = moments(doubles(x), 16);
    Doubles unbiased = want.variance;
    for (double& v : unbiased) v *= 32768.0 / 32767.0;
    EXPECT_LE(distance(want.mean, run.buffer(0)), 4 * rounding(DType::f32) * (offset == 0 ? 200 : 1));   // near 0 a mean is a small difference
    EXPECT_LE(distance(unbiased, run.buffer(1)), 4 * rounding(DType::f32) * (1 + offset * offset));      // x^2 - mean^2 cancels
  }
}

TEST(BatchNorm, RunningStatisticsAndEvaluationArePyTorchs) {
  Device device;
  const Shape shape{4, 3, 2, 5};
  const double momentum = 0.3;
  std::ostringstream data;
  data.precision(9);
  Graph graph(shape);
  batch_norm(graph.input(), "bn", {.momentum = momentum, .epsilon = 1e-3});
  LayersRun run(device, graph);
  const auto weight = noise(5, 3, 0.5, 1), bias = noise(5, 4);
  run.put_weight(0, weight), run.put_weight(1, bias);
  for (const float v : weight) data << v << ' ';
  for (const float v : bias) data << v << ' ';
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto x = noise(shape.size(), 10 + step, 1 + static_cast<double>(step), 2);
    for (const float v : x) data << v << ' ';
    run.put_input(x);
    run.forward(step < 2 ? Mode::training : Mode::evaluation);
  }
  const ScratchFolder folder;
  write_file(folder / "data", data.str());
  std::istringstream printed(run_python(R"(
import sys, torch
v = torch.tensor([float(t) for t in open(sys.argv[1]).read().split()], dtype=torch.float64)
bn = torch.nn.BatchNorm2d(5, eps=1e-3, momentum=0.3).double()
with torch.no_grad():
    bn.weight.copy_(v[:5]); bn.bias.copy_(v[5:10])
    x = v[10:].reshape(3, 4, 3, 2, 5).permute(0, 1, 4, 2, 3)
    bn(x[0]); bn(x[1]); bn.eval()
    y = bn(x[2]).permute(0, 2, 3, 1)
print(*['%.17g' % t for t in bn.running_mean.tolist() + bn.running_var.tolist() + y.flatten().tolist()])
)",
                                        {folder / "data"}));
  Doubles mean(5), var(5), y(static_cast<std::size_t>(shape.size()));
  for (Doubles* part : {&mean, &var, &y})
    for (double& v : *part) printed >> v;
  EXPECT_LE(distance(mean, run.buffer(0)), 8 * rounding(DType::f32));
  EXPECT_LE(distance(var, run.buffer(1)), 32 * rounding(DType::f32));
  EXPECT_LE(distance(y, run.output()), 32 * rounding(DType::f32));
}

TEST(BatchNorm, OneValueTracksTheBiasedVarianceAndNoneChangesNothing) {
  Device device;
  Graph graph({1, 1, 1, 3});
  batch_norm(graph.input(), "bn");
  LayersRun run(device, graph);
  run.put_weight(0, {1, 1, 1}), run.put_weight(1, {7, 8, 9});
  run.put_input({10, 20, 30});
  run.forward();
  run.backward({1, 2, 3});
  EXPECT_LE(distance(Doubles{1, 2, 3}, run.buffer(0)), rounding(DType::f32));
  EXPECT_LE(distance(Doubles{0.9, 0.9, 0.9}, run.buffer(1)), rounding(DType::f32));   // variance 0, not 0 / 0
  EXPECT_EQ(run.output(), (std::vector<float>{7, 8, 9}));
  EXPECT_EQ(run.grad_input(), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(run.grad_weight(1), (std::vector<float>{1, 2, 3}));
  const auto mean = run.buffer(0), var = run.buffer(1);
  run.use_batch(0);
  run.forward();
  run.backward({});
  EXPECT_EQ(run.buffer(0), mean);
  EXPECT_EQ(run.buffer(1), var);
  EXPECT_EQ(run.grad_weight(0), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(run.grad_weight(1), (std::vector<float>{0, 0, 0}));
}

TEST(BatchNorm, UsesTheRunningStatisticsUnchangedWhenFrozen) {
  Device device;
  for (const BatchNormCase& p : cases()) {
    SCOPED_TRACE(p.name());
    Net net(p);
    for (Node& node : net.graph.nodes())
      if (node.layer->is_normalization()) node.layer->use_running_statistics(0);
    const Numbers t(p.shape);
    EqualRanks exchange(2);
    LayersRun run(device, net.graph, {.exchange = &exchange});
    t.put(run);
    run.forward();
    run.backward(t.dy);
    const Moments fixed{doubles(t.mean), doubles(t.var)};
    const Doubles x = doubles(t.x), weight = doubles(t.weight), bias = doubles(t.bias);
    const auto loop = [&](const Doubles& in, const Doubles& w) { return normalize(in, fixed, w, bias, p.has_add ? positive(in) : Doubles{}, p.has_relu); };
    const double tolerance = 16 * rounding(DType::f32);
    EXPECT_LE(distance(loop(x, weight), run.output()), tolerance);
    EXPECT_LE(distance(finite_differences([&](const Doubles& v) { return loop(v, weight); }, x, doubles(t.dy)), run.grad_input()), tolerance);
    EXPECT_LE(distance(finite_differences([&](const Doubles& v) { return loop(x, v); }, weight, doubles(t.dy)), run.grad_weight(0)), 4 * tolerance);
    EXPECT_EQ(run.buffer(0), t.mean);
    EXPECT_EQ(run.buffer(1), t.var);
    EXPECT_EQ(exchange.calls, 0);
    run.freeze(0), run.freeze(1);        // weights too: only grad x is left
    const auto grad = run.grad_input();
    run.backward(t.dy);
    EXPECT_EQ(run.grad_input(), grad);
  }
}

TEST(BatchNorm, FrozenWeightsOfABatchNormThatStillNormalizesByTheBatch) {
  Device device;
  const BatchNormCase p{{4, 3, 3, 16}, true, true};
  Net net(p);
  const Numbers t(p.shape);
  LayersRun run(device, net.graph);
  t.put(run);
  run.forward();
  run.backward(t.dy);
  const auto grad = run.grad_input();
  const auto weight_grad = run.grad_weight(0);
  run.freeze(1);
  run.backward(t.dy);
  EXPECT_EQ(run.grad_input(), grad);
  EXPECT_EQ(run.grad_weight(0), weight_grad);
  run.freeze(0);
  run.backward(t.dy);
  EXPECT_EQ(run.grad_input(), grad);
  EXPECT_NE(run.buffer(0), t.mean);      // still tracked
}

TEST(BatchNorm, WeightGradientsAddUpOverMicroBatches) {
  Device device;
  const BatchNormCase p{{4, 3, 3, 16}, false, true};
  Net net(p);
  const Numbers t(p.shape);
  LayersRun run(device, net.graph);
  t.put(run);
  run.forward();
  run.backward(t.dy);
  for (int i : {0, 1}) {
    Doubles twice = doubles(run.grad_weight(i));
    for (double& v : twice) v *= 2;
    run.backward(t.dy, GradMode::write);
    run.backward(t.dy, GradMode::add);
    EXPECT_EQ(distance(twice, run.grad_weight(i)), 0);
    run.backward(t.dy);
  }
}

TEST(BatchNorm, CountsBeyondFloatsIntegersTravelExactly) {
  Device device;
  const Shape shape{3, 3, 3, 16};        // 27 values a channel
  const auto var_with = [&](float ranks) {
    EqualRanks exchange(ranks);
    Graph graph(shape);
    batch_norm(graph.input(), "bn", {.momentum = 1});
    LayersRun run(device, graph, {.exchange = &exchange});
    run.put_weight(0, std::vector<float>(16, 1)), run.put_weight(1, std::vector<float>(16, 0));
    run.put_input(noise(shape.size(), 1));
    run.forward();
    run.backward(noise(shape.size(), 2));
    EXPECT_EQ(exchange.calls, 2);
    return std::pair(run.buffer(1), run.grad_input());
  };
  const auto [one, grad_one] = var_with(1);
  const auto [many, grad_many] = var_with(4096 * 512);   // 2^21 ranks of 27: 56 million, above 2^24
  Doubles want = doubles(one);
  const double n = 27.0, all = n * 4096 * 512;
  for (double& v : want) v *= (n - 1) / n * (all / (all - 1));
  EXPECT_LE(distance(want, many), 4 * rounding(DType::f32));
  EXPECT_LE(distance(grad_one, grad_many), 8 * rounding(DType::f32));   // ranks alike: the same means
}

}  // namespace
}  // namespace lockstep::test
