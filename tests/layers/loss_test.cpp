// Cross entropy against PyTorch and against a float64 loop; what it counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "layers/layers.hpp"
#include "support/layers_reference.hpp"
#include "support/layers_run.hpp"
#include "support/python.hpp"

namespace lockstep::test {
namespace {

struct LossResult {
  double sum = 0;
  Doubles losses, grad;                  // grad of the mean
};

std::vector<std::int32_t> some_labels(std::int64_t n, std::int64_t classes) {
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < n; ++i) labels.push_back(static_cast<std::int32_t>(i * 7 % classes));
  return labels;
}

/// PyTorch's answer in float64 for the logits that our test made.
LossResult torch_loss(std::int64_t n, std::int64_t classes, const std::vector<float>& logits, const std::vector<std::int32_t>& labels, double smoothing) {
  const ScratchFolder folder;
  std::ostringstream data;
  data.precision(9);
  for (const float z : logits) data << z << ' ';
  for (const std::int32_t y : labels) data << y << ' ';
  write_file(folder / "data", data.str());
  const std::string printed = run_python(R"(
import sys, torch
path, n, c, smoothing = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
v = [float(t) for t in open(path).read().split()]
z = torch.tensor(v[:n * c], dtype=torch.float64).reshape(n, c).requires_grad_()
y = torch.tensor(v[n * c:]).long()
loss = torch.nn.functional.cross_entropy(z, y, label_smoothing=smoothing, reduction='none')
loss.mean().backward()
print(*['%.17g' % t for t in loss.tolist() + z.grad.flatten().tolist()])
)",
                                         {folder / "data", std::to_string(n), std::to_string(classes), text_of(smoothing)});
  std::istringstream in(printed);
  LossResult r;
  for (double v; in >> v;) (static_cast<std::int64_t>(r.losses.size()) < n ? r.losses : r.grad).push_back(v);
  for (const double loss : r.losses) r.sum += loss;
  return r;
}

TEST(CrossEntropy, LossAndGradientArePyTorchsWithAndWithoutSmoothing) {
  Device device;
  for (const double smoothing : {0.0, 0.1})
    for (const std::int64_t classes : {10, 1000}) {
      SCOPED_TRACE(text_of("smoothing ", smoothing, ", classes ", classes));
      const std::int64_t n = 6;
      const auto logits = noise(n * classes, 1, 4, 3);
      const auto labels = some_labels(n, classes);
      const LossResult want = torch_loss(n, classes, logits, labels, smoothing);
      Graph graph({n, 1, 1, classes});
      cross_entropy(graph.input(), smoothing);
      LayersRun run(device, graph);
      StepState step;
      step.inverse_global_count = 1.f / static_cast<float>(n), step.local_count = static_cast<std::int32_t>(n), step.loss_scale = 1024;
      run.put_step(step);
      run.put_input(logits);
      run.put_labels(labels);
      run.forward();
      run.backward({});
      Doubles scaled = want.grad;
      for (double& g : scaled) g *= 1024;
      EXPECT_LE(distance(want.losses, run.output()), 8 * rounding(DType::f32));       // a few float operations on numbers of the loss's size
      EXPECT_LE(distance(scaled, run.grad_input()), 32 * rounding(DType::f32));       // exp of a difference near 20: its rounding is relative here
      EXPECT_NEAR(run.metrics().loss, want.sum, 8 * rounding(DType::f32) * want.sum);
      EXPECT_EQ(run.metrics().images, n);
    }
}

TEST(CrossEntropy, SixteenBitLogitsGiveTheSameLossAsTheirFloats) {
  Device device;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const std::int64_t n = 5, classes = 20;
    const auto logits = noise(n * classes, 1, 3, 0, dtype);
    const auto labels = some_labels(n, classes);
    const auto run_as = [&](DType type) {
      Graph graph({n, 1, 1, classes});
      cross_entropy(graph.input(), 0.1);
      LayersRun run(device, graph, {.dtype = type});
      run.put_input(logits);
      run.put_labels(labels);
      run.forward();
      run.backward({});
      return std::pair(run.metrics().loss, run.grad_input());
    };
    const auto [loss, grad] = run_as(dtype);
    const auto [loss32, grad32] = run_as(DType::f32);
    EXPECT_EQ(loss, loss32);             // it is a sum of floats, whatever the logits' type
    EXPECT_LE(distance(grad32, grad), rounding(dtype));
  }
}

struct Counts {
  std::int64_t top1 = 0, top5 = 0;
  std::vector<std::int32_t> predictions;
};
/// By sorting: larger first, of equals the lower class.
Counts count_by_sorting(std::int64_t n, std::int64_t classes, const std::vector<float>& logits, const std::vector<std::int32_t>& labels) {
  Counts counts;
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(classes));
    for (std::int32_t k = 0; k < classes; ++k) order[static_cast<std::size_t>(k)] = k;
    const float* z = logits.data() + i * classes;
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return z[a] > z[b]; });
    const auto at = std::find(order.begin(), order.end(), labels[static_cast<std::size_t>(i)]) - order.begin();
    counts.top1 += at < 1, counts.top5 += at < 5;
    counts.predictions.push_back(order[0]);
  }
  return counts;
}

std::vector<std::int32_t> labels_of(const std::vector<Prediction>& predictions) {
  std::vector<std::int32_t> labels;
  for (const Prediction& p : predictions) labels.push_back(p.label);
  return labels;
}

TEST(CrossEntropy, CountsTopOneAndFiveWithTiesToTheLowerClass) {
  Device device;
  for (const std::int64_t classes : {3, 12}) {
    const std::int64_t n = 200;
    auto logits = noise(n * classes, 1, 1.5);
    for (float& z : logits) z = std::round(z);   // many ties
    const auto labels = some_labels(n, classes);
    const Counts want = count_by_sorting(n, classes, logits, labels);
    Graph graph({n, 1, 1, classes});
    cross_entropy(graph.input(), 0);
    LayersRun run(device, graph);
    run.put_input(logits);
    run.put_labels(labels);
    run.forward(Mode::evaluation);
    EXPECT_EQ(run.metrics().top1, want.top1);
    EXPECT_EQ(run.metrics().top5, want.top5);
    EXPECT_EQ(labels_of(run.predictions()), want.predictions);
    run.forward(Mode::evaluation);       // sums go on until the trainer clears them
    EXPECT_EQ(run.metrics().top1, 2 * want.top1);
    EXPECT_EQ(run.metrics().images, 2 * n);
  }
}

TEST(CrossEntropy, APredictionHasItsSoftmaxAndTheLossOfItsImageWithoutSmoothing) {
  Device device;
  const std::int64_t n = 50, classes = 7;
  const auto logits = noise(n * classes, 1, 2.0);
  const auto labels = some_labels(n, classes);
  for (const double smoothing : {0.0, 0.3}) {
    Graph graph({n, 1, 1, classes});
    cross_entropy(graph.input(), smoothing);
    LayersRun run(device, graph);
    run.put_input(logits);
    run.put_labels(labels);
    run.forward(Mode::evaluation);
    const std::vector<Prediction> predictions = run.predictions();
    for (std::int64_t i = 0; i < n; ++i) {
      const float* z = logits.data() + i * classes;
      double sum = 0;
      for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(double{z[k]});
      const Prediction& p = predictions[static_cast<std::size_t>(i)];
      EXPECT_NEAR(p.probability, std::exp(double{z[p.label]}) / sum, 1e-6);                        // a few roundings of numbers up to 1
      EXPECT_NEAR(p.loss, std::log(sum) - z[labels[static_cast<std::size_t>(i)]], 1e-5);           // up to 10
    }
  }
}

TEST(CrossEntropy, ImagesBeyondTheLocalCountAddNothing) {
  Device device;
  const std::int64_t n = 6, classes = 4, count = 4;
  const auto logits = noise(n * classes, 1);
  auto labels = some_labels(n, classes);
  labels[4] = -7, labels[5] = 1 << 30;   // padding: never read as an index
  const auto run_for = [&](std::int64_t images, std::int32_t local_count) {
    Graph graph({images, 1, 1, classes});
    cross_entropy(graph.input(), 0.1);
    auto run = std::make_unique<LayersRun>(device, graph);
    StepState step;
    step.inverse_global_count = 0.25f, step.local_count = local_count;
    run->put_step(step);
    run->put_input({logits.begin(), logits.begin() + images * classes});
    run->put_labels({labels.begin(), labels.begin() + images});
    run->forward();
    run->backward({});
    return std::pair(run->metrics(), run->grad_input());
  };
  const auto [padded, padded_grad] = run_for(n, count);
  const auto [exact, exact_grad] = run_for(count, count);
  EXPECT_EQ(padded.loss, exact.loss);
  EXPECT_EQ(padded.images, count);
  EXPECT_EQ(padded.top1, exact.top1);
  for (std::int64_t i = 0; i < n * classes; ++i)
    EXPECT_EQ(padded_grad[static_cast<std::size_t>(i)], i < count * classes ? exact_grad[static_cast<std::size_t>(i)] : 0);
}

TEST(CrossEntropy, NonFiniteLossesAreCountedAndPredictionsStayDefined) {
  Device device;
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  Graph graph({5, 1, 1, 3});
  cross_entropy(graph.input(), 0);
  LayersRun run(device, graph);
  run.put_input({1, 2, 3, nan, 1, 2, 1, inf, 2, 0, -inf, 1, 88, -3e38f, 0});
  run.put_labels({2, 1, 1, 1, 0});
  run.forward();
  EXPECT_EQ(run.nonfinite_losses(), 3);  // NaN; inf - inf; a label of probability 0
  EXPECT_FALSE(std::isfinite(run.metrics().loss));
  run.forward(Mode::evaluation);
  EXPECT_EQ(labels_of(run.predictions()), (std::vector<std::int32_t>{2, 0, 1, 2, 0}));
  EXPECT_EQ(run.nonfinite_losses(), 3);  // evaluation does not turn updates off
}

TEST(CrossEntropy, AnEmptyBatchAddsNothing) {
  Device device;
  Graph graph({2, 1, 1, 3});
  cross_entropy(graph.input(), 0);
  LayersRun run(device, graph);
  run.use_batch(0);
  run.forward();
  run.backward({});
  EXPECT_EQ(run.metrics().images, 0);
}

}  // namespace
}  // namespace lockstep::test
