// Training steps against PyTorch.  Teacher-forced: before each step our weights, moments and running statistics are PyTorch's, so that a step's
// error is its own and not what training made of those before it.  Free-running: LeNet, which is too small to amplify them.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <limits>

#include "support/models_torch.hpp"
#include "support/train_errors.hpp"
#include "support/train_network.hpp"

namespace lockstep::test {
namespace {

constexpr double ulp = 0x1p-23;          // relative; PyTorch's error may be 0 by luck, ours then need not be

TrainingValues read_state(TorchOracle& oracle, TestNetwork& network) {
  TrainingValues state;
  state.weights = network.read_parameters(oracle);
  for (std::size_t i = 0; i < network.moment_count(); ++i) state.moments.push_back(network.read_parameters(oracle));
  state.buffers = network.read_buffers(oracle);
  return state;
}

/// What one step of PyTorch's float64 made, in f32.
struct TrueStep {
  double loss = 0;
  std::vector<float> gradients;
  TrainingValues after;
  std::vector<std::vector<double>> f32;  // of each f32 step: its loss, then the distance of each tensor

  TrueStep(TorchOracle& oracle, TestNetwork& network)
      : loss(oracle.read_one<double>()), gradients(network.read_parameters(oracle)), after(read_state(oracle, network)) {
    const auto tensors = static_cast<std::int64_t>((2 + network.moment_count()) * network.slice_count() + network.parameters().buffers().size());
    f32.resize(static_cast<std::size_t>(oracle.read_one<std::int32_t>()));
    for (std::vector<double>& step : f32) step = oracle.read<double>(1 + tensors);
  }
};

double distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}
double length(std::span<const float> a) {
  double sum = 0;
  for (const float v : a) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}
std::span<const float> part(const std::vector<float>& flat, std::int64_t offset, std::int64_t count) {
  return std::span(flat).subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
}

/// Adds one step's distances.  f32[1 ...] of the truth are in the order in which this function asks for them.
void compare(Errors& errors, TestNetwork& network, double loss, const TrainingValues& before, const TrueStep& truth) {
  std::size_t next = 0;
  const auto add = [&](const std::string& quantity, const std::string& tensor, std::span<const float> ours, std::span<const float> true_values, double scale) {
    Distance d{.ours = distance(ours, true_values), .scale = scale, .torch = {}, .rounding = ulp * length(true_values)};
    ++next;
    for (const std::vector<double>& step : truth.f32) d.torch.push_back(step[next]);
    errors.add(quantity, tensor, d);
  };
  const auto add_parameters = [&](const std::string& quantity, const std::vector<float>& ours, const std::vector<float>& true_values, const std::vector<float>* old) {
    for (std::size_t i = 0; i < network.slice_count(); ++i) {
      const Slice& s = network.slice(i);
      const auto values = part(true_values, s.offset, s.count);
      add(quantity, s.spec.name, part(ours, s.offset, s.count), values, old ? distance(values, part(*old, s.offset, s.count)) : length(values));
    }
  };
  Distance of_loss{.ours = std::abs(loss - truth.loss), .scale = std::abs(truth.loss), .torch = {}, .rounding = ulp * std::abs(truth.loss)};
  for (const std::vector<double>& step : truth.f32) of_loss.torch.push_back(std::abs(step[0] - truth.loss));
  errors.add("loss", "loss", of_loss);

  const TrainingValues ours = network.values();
  add_parameters("gradient", network.gradients(), truth.gradients, nullptr);
  add_parameters("update", ours.weights, truth.after.weights, &before.weights);
  for (std::size_t m = 0; m < ours.moments.size(); ++m) add_parameters(text_of("moment ", m + 1), ours.moments[m], truth.after.moments[m], nullptr);
  for (std::size_t b = 0; b < network.parameters().buffers().size(); ++b) {
    const BufferSpec& spec = network.parameters().buffers()[b];
    const auto values = part(truth.after.buffers, network.buffer_offset(b), spec.channels);
    add(spec.name.ends_with("mean") ? "running mean" : "running var", spec.name, part(ours.buffers, network.buffer_offset(b), spec.channels), values, length(values));
  }
  errors.end_step();
}

TrainingValues start_values(TorchOracle& oracle, TestNetwork& network) {
  TrainingValues start;
  start.weights = network.read_parameters(oracle), start.buffers = network.read_buffers(oracle);
  start.moments.assign(network.moment_count(), std::vector<float>(start.weights.size()));
  return start;
}

void set_next_batch(TorchOracle& oracle, TestNetwork& network, const TorchCase& c) {
  const std::vector<float> images = oracle.read<float>(c.batch * c.size * c.size * 3);
  network.set_batch(images, oracle.read<std::int32_t>(c.batch));
}

TorchCase training_case(const std::string& name, std::int64_t batch, std::int64_t size, const OptimizerConfig& optimizer) {
  TorchCase c;
  c.name = name + "_" + optimizer.kind, c.model.name = name, c.model.classes = 10, c.batch = batch, c.size = size, c.optimizer = optimizer;
  return c;
}
OptimizerConfig sgd(double rate, double decay) { return {.learning_rate = rate, .momentum = 0.9, .weight_decay = decay}; }
OptimizerConfig adamw(double rate, double decay) { return {.kind = "adamw", .learning_rate = rate, .weight_decay = decay}; }

class Steps : public testing::TestWithParam<TorchCase> {
 protected:
  // Arrays of 200 MB come and go each step: their pages stay with the process.
  static void SetUpTestSuite() { mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max()); }
};

TEST_P(Steps, FromTorchsStateErrAtMostFiveTimesAsMuchAsTorchsFloat32) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const TorchCase& c = GetParam();
  TorchOracle oracle(request_of(c, "steps", true));
  TestNetwork network(c);
  TrainingValues before = start_values(oracle, network);
  Errors errors;
  double first_loss = 0, last_loss = 0;
  for (std::int64_t step = 0; step < c.steps; ++step) {
    set_next_batch(oracle, network, c);
    network.set(before, step);
    const double loss = network.step(step);
    TrueStep truth(oracle, network);
    compare(errors, network, loss, before, truth);
    before = std::move(truth.after);
    (step == 0 ? first_loss : last_loss) = truth.loss;
  }
  EXPECT_TRUE(oracle.is_at_end());
  errors.expect_within(5);
  std::printf("loss from %.3f to %.3f\n", first_loss, last_loss);
}

std::vector<TorchCase> training_cases() {
  std::vector<TorchCase> cases = {
      training_case("resnet20", 8, 32, sgd(0.1, 1e-4)), training_case("resnet20", 8, 32, adamw(1e-3, 0.05)),
      training_case("resnet18", 8, 32, sgd(0.1, 1e-4)), training_case("resnet18", 8, 32, adamw(1e-3, 0.05)),
      training_case("alexnet", 4, 64, adamw(1e-4, 0.01)),
      training_case("lenet", 16, 32, sgd(1e-3, 1e-3)),  training_case("lenet", 16, 32, adamw(1e-3, 0.05)),
  };
  cases[2].label_smoothing = 0.1;
  cases[2].f32_every = cases[3].f32_every = 2;    // 11 million weights: PyTorch's f32 steps take longer than all else
  cases[3].optimizer.decay_norm_and_bias = false;
  cases[4].f32_every = 5;                         // 57 million
  return cases;
}
/// In each precision that the device has, beside PyTorch's in the same.  CPUs have bf16 in the tests alone.
std::vector<TorchCase> precision_cases() {
  std::vector<TorchCase> cases;
  for (const char* precision : {"tf32", "bf16", "fp16"}) {
    if (is_host_build() && std::string(precision) != "bf16") continue;
    std::vector<TorchCase> here = {training_case("lenet", 16, 32, sgd(1e-3, 1e-3)), training_case("resnet20", 8, 32, sgd(0.1, 1e-4))};
    if (!is_host_build())
      here.insert(here.end(), {training_case("resnet44", 8, 32, sgd(0.1, 1e-4)), training_case("resnet18", 8, 32, sgd(0.1, 1e-4)), training_case("resnet50", 8, 64, sgd(0.1, 1e-4)),
                               training_case("alexnet", 4, 64, adamw(1e-4, 0.01))});
    for (TorchCase& c : here) c.precision = precision, c.name += text_of("_", precision), c.steps = 10, cases.push_back(c);
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Precisions, Steps, testing::ValuesIn(precision_cases()), [](const testing::TestParamInfo<TorchCase>& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(All, Steps, testing::ValuesIn(training_cases()), [](const testing::TestParamInfo<TorchCase>& info) { return info.param.name; });

TEST(Steps, FiftyOfLeNetOnItsOwnEndWithinTenThousandthsOfTorchsWeights) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  for (const OptimizerConfig& optimizer : {OptimizerConfig{.learning_rate = 1e-3, .momentum = 0, .weight_decay = 0}, adamw(1e-3, 0.05)}) {
    TorchCase c = training_case("lenet", 16, 32, optimizer);
    SCOPED_TRACE(text_of(optimizer.kind, ", momentum ", optimizer.momentum));
    c.f32_every = 0;
    TorchOracle oracle(request_of(c, "steps", false));
    TestNetwork network(c);
    network.set(start_values(oracle, network), 0);
    TrainingValues end;
    for (std::int64_t step = 0; step < c.steps; ++step) {
      set_next_batch(oracle, network, c);
      const double loss = network.step(step);
      TrueStep truth(oracle, network);
      EXPECT_NEAR(loss, truth.loss, 1e-4 * truth.loss) << "step " << step;
      end = std::move(truth.after);
    }
    const TrainingValues ours = network.values();
    double most = 0;
    for (std::size_t i = 0; i < network.slice_count(); ++i) {
      const Slice& s = network.slice(i);
      const auto values = part(end.weights, s.offset, s.count);
      const double error = distance(part(ours.weights, s.offset, s.count), values) / length(values);
      EXPECT_LT(error, 1e-4) << s.spec.name;
      most = std::max(most, error);
    }
    std::printf("%s, momentum %g: largest relative error of a tensor after %d steps %.1e\n", optimizer.kind.c_str(), optimizer.momentum, static_cast<int>(c.steps), most);
  }
}

}  // namespace
}  // namespace lockstep::test
