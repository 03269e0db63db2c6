// Every model against PyTorch: the same weights and running statistics, the same images, the same logits.
#include <gtest/gtest.h>

#include <cmath>

#include "support/models_torch.hpp"
#include "support/train_network.hpp"

namespace lockstep::test {
namespace {

struct Case {
  std::string name, stem;
  std::int64_t size;                     // of images: the smallest that leaves every layer something to do
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name << ", stem " << c.stem; }
class Logits : public testing::TestWithParam<Case> {};

/// Largest distance, relative to the largest logit.
double error_of(const std::vector<float>& ours, const std::vector<double>& truth) {
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < truth.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(ours[i]) - truth[i])), largest = std::max(largest, std::abs(truth[i]));
  return most / largest;
}

TEST_P(Logits, AreTorchsInFloat64FusedAndUnfused) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  TorchCase c;
  c.model.name = GetParam().name, c.model.stem = GetParam().stem, c.model.classes = 10, c.size = GetParam().size, c.batch = 4;
  TorchOracle oracle(request_of(c, "logits", false));
  TestNetwork fused(c), unfused(c, false);
  const std::vector<float> weights = oracle.read<float>(fused.parameter_count()), buffers = fused.read_buffers(oracle);
  const std::vector<float> images = oracle.read<float>(c.batch * c.size * c.size * 3);
  const std::vector<double> truth = oracle.read<double>(c.batch * c.model.classes);
  EXPECT_TRUE(oracle.is_at_end());
  for (TestNetwork* network : {&fused, &unfused}) {
    const char* which = network == &fused ? "fused" : "unfused";
    network->set({network->stored(weights), {}, buffers}, 0);   // the layout of the flat buffer is each network's own
    network->set_batch(images, std::vector<std::int32_t>(static_cast<std::size_t>(c.batch)));
    const double error = error_of(network->logits(), truth);
    std::printf("%s %s: relative error of the logits %.1e\n", c.model.name.c_str(), which, error);
    EXPECT_LT(error, 1e-5) << which;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Logits,
    testing::Values(Case{"resnet20", "imagenet", 32}, Case{"resnet32", "imagenet", 32}, Case{"resnet44", "imagenet", 32}, Case{"resnet56", "imagenet", 32},
                    Case{"resnet110", "imagenet", 32}, Case{"resnet18", "imagenet", 64}, Case{"resnet34", "imagenet", 64}, Case{"resnet50", "imagenet", 64},
                    Case{"resnet101", "imagenet", 64}, Case{"resnet152", "imagenet", 64}, Case{"resnet18", "cifar", 32}, Case{"resnet50", "cifar", 32},
                    Case{"alexnet", "imagenet", 127}, Case{"lenet", "imagenet", 32}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name + (info.param.stem == "cifar" ? "_cifar" : ""); });

}  // namespace
}  // namespace lockstep::test
