// Initial weights against those that torch and torchvision draw: the same distribution, tensor by tensor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/models.hpp"
#include "support/models_torch.hpp"

namespace lockstep::test {
namespace {

constexpr std::size_t most = 20000;      // values of a tensor that are compared, spread over it

std::vector<float> thinned(const std::vector<float>& values) {
  const std::size_t step = (values.size() + most - 1) / most;
  std::vector<float> few;
  for (std::size_t i = 0; i < values.size(); i += step) few.push_back(values[i]);
  return few;
}

/// Largest distance between the two distribution functions (Kolmogorov and Smirnov), times sqrt(n m / (n + m)).
double distance(std::vector<float> a, std::vector<float> b) {
  std::ranges::sort(a), std::ranges::sort(b);
  const auto n = static_cast<double>(a.size()), m = static_cast<double>(b.size());
  double largest = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const float x = std::min(a[i], b[j]);
    while (i < a.size() && a[i] <= x) ++i;
    while (j < b.size() && b[j] <= x) ++j;
    largest = std::max(largest, std::abs(static_cast<double>(i) / n - static_cast<double>(j) / m));
  }
  return largest * std::sqrt(n * m / (n + m));
}

double deviation(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

class InitialValues : public testing::TestWithParam<std::string> {};

TEST_P(InitialValues, AreDrawnFromTorchsDistributionTensorByTensor) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const std::string name = GetParam();
  const ScratchFolder folder;
  run_in(folder, python_models() + "torch.manual_seed(1)\nm = make('" + name + "', 1000)\n" + text_of("most = ", most, "\n") +
                         "for i, p in enumerate(m.parameters()):\n"
                         "    v = p.detach().flatten(); step = (v.numel() + most - 1) // most\n"
                         "    v[::step].numpy().tofile(str(i))\n");
  ModelConfig config;
  config.name = name, config.classes = 1000;
  const std::int64_t size = name == "alexnet" ? 224 : 32;
  Graph graph({1, size, size, 3});
  build_model(graph, config);
  int drawn = 0;
  for (const ParameterSpec& spec : graph.parameter_specs()) {
    SCOPED_TRACE(spec.name);
    const auto want = read_array<float>(folder / std::to_string(spec.ordinal));
    const auto got = thinned(initial_values(spec, 1));
    ASSERT_EQ(got.size(), want.size());
    if (spec.init.kind == Init::constant) {
      EXPECT_EQ(got, want);
      continue;
    }
    ++drawn;
    // Draws from one distribution exceed 2.2 once in 8000 tensors (2 exp(-2 x 2.2^2)).
    EXPECT_LT(distance(got, want), 2.2);
    // The ratio of two estimates of one deviation, each from n normal values, scatters by 1/sqrt(n); five of those.
    EXPECT_NEAR(deviation(got) / deviation(want), 1, 5 / std::sqrt(static_cast<double>(got.size())));
    if (spec.init.kind == Init::uniform) {
      const auto [low, high] = std::ranges::minmax(got);
      EXPECT_GE(low, -static_cast<float>(spec.init.value));
      EXPECT_LT(high, static_cast<float>(spec.init.value));
    }
  }
  EXPECT_GE(drawn, 10);
}

INSTANTIATE_TEST_SUITE_P(Models, InitialValues, testing::Values("resnet20", "resnet18", "resnet50", "alexnet", "lenet"),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

TEST(InitialValuesSeeds, AndTensorsGiveNumbersThatHaveNothingInCommon) {
  ModelConfig config;
  config.classes = 10;
  Graph graph({1, 32, 32, 3});
  build_model(graph, config);
  const ParameterSpec &first = graph.parameter_specs()[3], &second = graph.parameter_specs()[6];   // two convolutions of one shape
  ASSERT_EQ(first.shape, second.shape);
  EXPECT_EQ(initial_values(first, 1), initial_values(first, 1));
  for (const auto& [a, b] : {std::pair{initial_values(first, 1), initial_values(first, 2)}, std::pair{initial_values(first, 1), initial_values(second, 1)}}) {
    double product = 0;
    for (std::size_t i = 0; i < a.size(); ++i) product += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    const auto n = static_cast<double>(a.size());
    EXPECT_LT(std::abs(product / (n * deviation(a) * deviation(b))), 5 / std::sqrt(n));            // correlation of independent values
  }
}

}  // namespace
}  // namespace lockstep::test
