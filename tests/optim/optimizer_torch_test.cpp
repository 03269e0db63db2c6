// Optimizers against torch.optim: 50 steps on the same random gradients, by torch in float64 (the truth) and in float32 (the allowance).
#include <gtest/gtest.h>

#include "support/models_torch.hpp"
#include "support/optim_fixture.hpp"

namespace lockstep::test {
namespace {

constexpr int steps = 50;

struct Case {
  const char* name;
  const char* torch;                     // the optimizer over `groups`
  void (*set)(OptimizerConfig&);
  double clip = 0;
  bool decays_all = true;
  std::vector<double> rate_factors = {1, 1, 1, 1};   // of each of optim_fixture's slices
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// Rates that change each step, so that a step's rate is seen to be its own.
std::vector<float> falling_rates(float first) {
  std::vector<float> rates;
  for (int s = 0; s < steps; ++s) rates.push_back(first * (1.f - 0.015f * static_cast<float>(s)));
  return rates;
}

const char* script = R"(
import numpy as np, torch, json
counts, norm_or_bias = COUNTS, NORMS
start = np.split(np.fromfile("start", np.float32), np.cumsum(counts)[:-1])
grads = np.fromfile("grads", np.float32).reshape(STEPS, -1)
rates = np.fromfile("rates", np.float32)
for dtype, name in ((torch.float64, "f64"), (torch.float32, "f32")):
    params = [torch.nn.Parameter(torch.tensor(w, dtype=dtype)) for w in start]
    groups = [dict(params=[p]) if DECAYS_ALL or not n else dict(params=[p], weight_decay=0) for p, n in zip(params, norm_or_bias)]
    optimizer = OPTIMIZER
    for s in range(STEPS):
        for p, g in zip(params, np.split(grads[s], np.cumsum(counts)[:-1])): p.grad = torch.tensor(g, dtype=dtype)
        if CLIP: torch.nn.utils.clip_grad_norm_(params, CLIP)
        for group, factor in zip(optimizer.param_groups, FACTORS): group["lr"] = float(rates[s]) * factor
        optimizer.step()
    torch.cat([p.detach().double() for p in params]).numpy().tofile(name)
)";

std::string with(std::string text, const std::vector<std::pair<std::string, std::string>>& words) {
  for (const auto& [from, to] : words)
    for (std::size_t at; (at = text.find(from)) != std::string::npos;) text.replace(at, from.size(), to);
  return text;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

class OptimizerAgainstTorch : public testing::TestWithParam<Case> {};

TEST_P(OptimizerAgainstTorch, FiftyStepsGiveTheWeightsOfTorchInFloat64) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const Case& c = GetParam();
  Training::Options options;
  options.config = {};
  c.set(options.config);
  options.config.clip_norm = c.clip, options.config.decay_norm_and_bias = c.decays_all;
  options.rate_factors = c.rate_factors;
  options.rates = falling_rates(static_cast<float>(options.config.learning_rate));
  Training training(options);
  const auto slices = training.parameters().slices();

  std::vector<float> start, grads;
  std::string counts, norms, factors;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const std::vector<float> w = noise(slices[i].count, i);
    start.insert(start.end(), w.begin(), w.end());
    training.put_weights(static_cast<int>(i), w);
    counts += std::to_string(slices[i].count) + ",", norms += slices[i].spec.is_norm_or_bias ? "1," : "0,";
    factors += text_of(c.rate_factors[i], ",");
  }
  for (int s = 0; s < steps; ++s) {
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const std::vector<float> g = noise(slices[i].count, 100 + static_cast<std::size_t>(s) * 10 + i, 0.1);
      grads.insert(grads.end(), g.begin(), g.end());
      training.put_grad(static_cast<int>(i), g);
    }
    training.update();
  }
  std::vector<double> ours;
  for (std::size_t i = 0; i < slices.size(); ++i)
    for (const float w : training.weights(static_cast<int>(i))) ours.push_back(w);

  const ScratchFolder folder;
  write_array(folder / "start", start), write_array(folder / "grads", grads), write_array(folder / "rates", options.rates);
  run_in(folder, with(script, {{"COUNTS", "[" + counts + "]"}, {"NORMS", "[" + norms + "]"}, {"FACTORS", "[" + factors + "]"}, {"STEPS", std::to_string(steps)},
                                   {"DECAYS_ALL", c.decays_all ? "True" : "False"}, {"OPTIMIZER", c.torch}, {"CLIP", std::to_string(c.clip)}}));
  const auto truth = read_array<double>(folder / "f64"), rounded = read_array<double>(folder / "f32");
  ASSERT_EQ(ours.size(), truth.size());
  // torch's own float32 rounds about as often a step as ours does; the order of a few operations differs.
  EXPECT_LT(distance(ours, truth), 3 * distance(rounded, truth));
  EXPECT_EQ(training.status().updates, steps);
}

INSTANTIATE_TEST_SUITE_P(
    All, OptimizerAgainstTorch,
    testing::Values(
        Case{"sgd", "torch.optim.SGD(groups, 0.1)", [](OptimizerConfig& c) { c.momentum = 0, c.weight_decay = 0; }},
        Case{"sgd_decay", "torch.optim.SGD(groups, 0.1, weight_decay=0.05)", [](OptimizerConfig& c) { c.momentum = 0, c.weight_decay = 0.05; }},
        Case{"momentum", "torch.optim.SGD(groups, 0.1, momentum=0.9, weight_decay=0.01)", [](OptimizerConfig& c) { c.weight_decay = 0.01; }},
        Case{"momentum_without_decay_of_norms", "torch.optim.SGD(groups, 0.1, momentum=0.9, weight_decay=0.01)",
             [](OptimizerConfig& c) { c.weight_decay = 0.01; }, 0, false},
        Case{"nesterov", "torch.optim.SGD(groups, 0.1, momentum=0.8, weight_decay=0.01, nesterov=True)",
             [](OptimizerConfig& c) { c.momentum = 0.8, c.weight_decay = 0.01, c.nesterov = true; }},
        Case{"momentum_clipped", "torch.optim.SGD(groups, 0.1, momentum=0.9, weight_decay=0.01)", [](OptimizerConfig& c) { c.weight_decay = 0.01; }, 2.5},
        Case{"clip_above_the_norm", "torch.optim.SGD(groups, 0.1, momentum=0.9)", [](OptimizerConfig& c) { c.weight_decay = 0; }, 1000},
        Case{"momentum_with_rates_by_group", "torch.optim.SGD(groups, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True)",
             [](OptimizerConfig& c) { c.weight_decay = 0.01, c.nesterov = true; }, 2.5, true, {1, 10, 0.1, 0.35}},
        Case{"adamw_with_rates_by_group", "torch.optim.AdamW(groups, 0.01, weight_decay=0.1)",
             [](OptimizerConfig& c) { c.kind = "adamw", c.learning_rate = 0.01, c.weight_decay = 0.1; }, 0, false, {0.5, 10, 1, 0.01}},
        Case{"adamw", "torch.optim.AdamW(groups, 0.01, weight_decay=0.1)",
             [](OptimizerConfig& c) { c.kind = "adamw", c.learning_rate = 0.01, c.weight_decay = 0.1; }},
        Case{"adamw_other_betas", "torch.optim.AdamW(groups, 0.01, betas=(0.8, 0.95), eps=1e-3, weight_decay=0)",
             [](OptimizerConfig& c) { c.kind = "adamw", c.learning_rate = 0.01, c.weight_decay = 0, c.beta1 = 0.8, c.beta2 = 0.95, c.epsilon = 1e-3; }},
        Case{"adamw_clipped_without_decay_of_norms", "torch.optim.AdamW(groups, 0.01, weight_decay=0.1)",
             [](OptimizerConfig& c) { c.kind = "adamw", c.learning_rate = 0.01, c.weight_decay = 0.1; }, 0.5, false}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::test
