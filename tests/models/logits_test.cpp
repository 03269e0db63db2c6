// Logits of every model against torch in float64, from the same weights, batch norm statistics and images.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/models.hpp"
#include "support/layers_run.hpp"
#include "support/models_python.hpp"
#include "support/models_torch.hpp"

namespace lockstep::test {
namespace {

struct Case {
  const char *name, *stem;
  std::int64_t size;
};
std::string text(const Case& c) { return text_of(c.name, "_", c.stem, "_", c.size); }
void PrintTo(const Case& c, std::ostream* out) { *out << text(c); }
class Logits : public testing::TestWithParam<Case> {};

// Scales, biases and statistics far from their start, so that none of them could be left out or mistaken for another unseen.
const char* script = R"(
torch.manual_seed(3)
m = make(NAME, 10, STEM).train()
for b in m.modules():
    if isinstance(b, nn.BatchNorm2d): nn.init.uniform_(b.weight, 0.5, 1.5); nn.init.normal_(b.bias, 0, 0.2)
with torch.no_grad():
    for _ in range(3): m(torch.randn(4, 3, SIZE, SIZE) + 0.3)
for i, p in enumerate(m.parameters()): p.detach().numpy().tofile("p%d" % i)
for i, b in enumerate(b for k, b in m.named_buffers() if not k.endswith("num_batches_tracked")): b.numpy().tofile("b%d" % i)
x = torch.randn(2, 3, SIZE, SIZE)
x.permute(0, 2, 3, 1).contiguous().numpy().tofile("x")
with torch.no_grad(): m.double().eval()(x.double()).numpy().tofile("logits")
)";

TEST_P(Logits, AreTorchsToAFewRoundings) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const Case& c = GetParam();
  const ScratchFolder folder;
  run_in(folder, std::string(python_models) + text_of("NAME, STEM, SIZE = '", c.name, "', '", c.stem, "', ", c.size, "\n") + script);

  ModelConfig config;
  config.name = c.name, config.stem = c.stem, config.classes = 10;
  Device device;
  Graph graph({2, c.size, c.size, 3});
  build_model(graph, config);
  LayersRun run(device, graph);
  for (std::size_t i = 0; i < graph.parameter_specs().size(); ++i) {
    const ParameterSpec& spec = graph.parameter_specs()[i];
    const auto values = read_array<float>(folder / text_of("p", i));
    std::vector<float> stored(values.size());
    ASSERT_EQ(spec.shape.size(), static_cast<std::int64_t>(values.size())) << spec.name;
    from_file_layout(spec, values.data(), stored.data());
    run.put_weight(static_cast<int>(i), stored);
  }
  for (std::size_t i = 0; i < graph.buffer_specs().size(); ++i) run.put_buffer(static_cast<int>(i), read_array<float>(folder / text_of("b", i)));
  run.put_input(read_array<float>(folder / "x"));
  run.forward(Mode::evaluation);

  const auto want = read_array<double>(folder / "logits");
  const auto got = run.output();
  ASSERT_EQ(got.size(), want.size());
  double largest = 0, error = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    error = std::max(error, std::abs(got[i] - want[i]));
  }
  EXPECT_LT(error, 1e-5 * largest);       // some 100 layers of f32, each within a few 6e-8 of its own scale
}

INSTANTIATE_TEST_SUITE_P(
    Models, Logits,
    testing::Values(Case{"resnet20", "imagenet", 32}, Case{"resnet32", "imagenet", 32}, Case{"resnet44", "imagenet", 32}, Case{"resnet56", "imagenet", 32},
                    Case{"resnet110", "imagenet", 32}, Case{"resnet18", "imagenet", 64}, Case{"resnet18", "cifar", 32}, Case{"resnet34", "imagenet", 65},
                    Case{"resnet50", "imagenet", 64}, Case{"resnet50", "cifar", 32}, Case{"resnet101", "imagenet", 64}, Case{"resnet152", "imagenet", 64},
                    Case{"alexnet", "imagenet", 227}, Case{"lenet", "imagenet", 32}),
    [](const testing::TestParamInfo<Case>& info) { return text(info.param); });

}  // namespace
}  // namespace lockstep::test
