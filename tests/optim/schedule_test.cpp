// Schedules step for step against torch.optim.lr_scheduler, and against the rules of the reference recipes written out.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numbers>

#include "optim/schedule.hpp"
#include "support/models_torch.hpp"

namespace lockstep::test {
namespace {

/// Prints the rate of each step of `epochs` epochs of `per_epoch` steps, as a PyTorch script would see it, for the scheduler `make`.
std::vector<double> torch_rates(const std::string& make, bool steps_by_epoch, std::int64_t per_epoch, std::int64_t epochs, double base) {
  std::ostringstream script;
  script.precision(17);
  script << "import torch, math\nfrom torch.optim.lr_scheduler import *\n"
         << "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], " << base << ")\n"
         << "L, E = " << per_epoch << ", " << epochs << "\nscheduler = " << make << "\n"
         << "for epoch in range(E):\n"
         << "    for step in range(L):\n"
         << "        print(repr(optimizer.param_groups[0]['lr']))\n"
         << "        optimizer.step()\n"
         << (steps_by_epoch ? "    scheduler.step()\n" : "        scheduler.step()\n");
  return numbers(run_python(script.str()));
}

struct Case {
  const char* name;
  const char* torch;
  bool by_epoch;
  void (*set)(ScheduleConfig&);
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
class ScheduleAgainstTorch : public testing::TestWithParam<Case> {};

TEST_P(ScheduleAgainstTorch, EveryStepHasItsRate) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const Case& c = GetParam();
  ScheduleConfig config;
  c.set(config);
  const SchedulePlan plan{.base_rate = 0.1, .steps_per_epoch = 7, .epochs = 12};
  const auto want = torch_rates(c.torch, c.by_epoch, plan.steps_per_epoch, plan.epochs, plan.base_rate);
  const auto table = rate_table(config, plan);
  ASSERT_EQ(want.size(), 84u);
  ASSERT_EQ(table.size(), want.size());
  for (std::size_t s = 0; s < want.size(); ++s) {
    // torch multiplies from step to step, so its rates carry a rounding for each; cosine's recursion cancels a little more.
    ASSERT_NEAR(rate_at(config, plan, static_cast<std::int64_t>(s)), want[s], 1e-12) << "step " << s;
    ASSERT_EQ(table[s], static_cast<float>(rate_at(config, plan, static_cast<std::int64_t>(s))));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ScheduleAgainstTorch,
    testing::Values(
        Case{"constant", "LambdaLR(optimizer, lambda e: 1.0)", true, [](ScheduleConfig& c) { c.kind = "constant"; }},
        Case{"plateau_has_its_factor_elsewhere", "LambdaLR(optimizer, lambda e: 1.0)", true, [](ScheduleConfig& c) { c.kind = "plateau"; }},
        Case{"step_by_epoch", "StepLR(optimizer, 3)", true, [](ScheduleConfig& c) { c.kind = "step", c.step_epochs = 3; }},
        Case{"step_with_gamma", "StepLR(optimizer, 5, gamma=0.2)", true, [](ScheduleConfig& c) { c.kind = "step", c.step_epochs = 5, c.gamma = 0.2; }},
        Case{"step_of_part_of_an_epoch", "StepLR(optimizer, 3)", false, [](ScheduleConfig& c) { c.kind = "step", c.step_epochs = 3.0 / 7; }},
        Case{"multistep_by_epoch", "MultiStepLR(optimizer, [3, 6, 8])", true, [](ScheduleConfig& c) { c.kind = "multistep", c.milestones_epochs = {3, 6, 8}; }},
        Case{"multistep_by_step", "MultiStepLR(optimizer, [1, 32, 48], gamma=0.5)", false,
             [](ScheduleConfig& c) { c.kind = "multistep", c.milestones_steps = {1, 32, 48}, c.gamma = 0.5; }},
        Case{"cosine_by_step", "CosineAnnealingLR(optimizer, L * E)", false, [](ScheduleConfig& c) { c.kind = "cosine"; }},
        Case{"cosine_by_epoch_to_a_fraction", "CosineAnnealingLR(optimizer, E, eta_min=0.025)", true,
             [](ScheduleConfig& c) { c.kind = "cosine", c.by = "epoch", c.final_fraction = 0.25; }},
        Case{"recipe_3", "LambdaLR(optimizer, lambda e: ((1 + math.cos(e * math.pi / E)) / 2) * (1 - 0.1) + 0.1)", true,
             [](ScheduleConfig& c) { c.kind = "cosine", c.by = "epoch", c.final_fraction = 0.1; }},
        Case{"polynomial", "PolynomialLR(optimizer, L * E, power=2)", false, [](ScheduleConfig& c) { c.kind = "polynomial", c.power = 2; }},
        Case{"linear_by_epoch_to_a_fraction", "LambdaLR(optimizer, lambda e: 0.3 + 0.7 * (1 - e / E))", true,
             [](ScheduleConfig& c) { c.kind = "polynomial", c.by = "epoch", c.final_fraction = 0.3; }},
        Case{"one_cycle_of_lines", "LambdaLR(optimizer, lambda s: (s + 1) / (3 * L) if s < 3 * L else (E * L - s) / ((E - 3) * L))", false,
             [](ScheduleConfig& c) { c.kind = "polynomial", c.warmup_epochs = 3; }},
        // RECIPES.md row 2, with (s + 1): the ramp multiplies what the schedule says.
        Case{"recipe_2", "LambdaLR(optimizer, lambda s: 0.1 ** sum(s >= L * m for m in (3, 6, 8)) * (min(1, (s + 1) / (5 * L))))", false,
             [](ScheduleConfig& c) { c.kind = "multistep", c.milestones_epochs = {3, 6, 8}, c.warmup_epochs = 5; }},
        Case{"warmup_then_cosine_over_the_rest",
             "LambdaLR(optimizer, lambda s: (s + 1) / (2 * L) if s < 2 * L else (1 + math.cos(math.pi * (s - 2 * L) / (10 * L))) / 2)", false,
             [](ScheduleConfig& c) { c.kind = "cosine", c.warmup_epochs = 2; }},
        Case{"warmup_of_part_of_an_epoch", "LambdaLR(optimizer, lambda s: min(1, (s + 1) / 4))", false,
             [](ScheduleConfig& c) { c.kind = "constant", c.warmup_epochs = 0.6; }}),   // 4.2 steps: 4
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(Schedule, WarmUpAndALineAreOneCycleLROfLinesToAnUpdate) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const SchedulePlan plan{.base_rate = 0.1, .steps_per_epoch = 7, .epochs = 12};
  const auto want = torch_rates("OneCycleLR(optimizer, 0.1, L * E, pct_start=0.25, anneal_strategy='linear', cycle_momentum=False, div_factor=1e9)", false, 7, 12, 0.1);
  ScheduleConfig config;
  config.kind = "polynomial", config.warmup_epochs = 0.25 * 12;
  ASSERT_EQ(want.size(), 84u);
  for (std::size_t s = 0; s < want.size(); ++s) {
    const double ours = rate_at(config, plan, static_cast<std::int64_t>(s)), update = 0.1 / (s < 21 ? 21 : 63);
    EXPECT_NEAR(ours, want[s], 1.0001 * update) << s;
  }
}

TEST(Schedule, NoStepHasRateZero) {
  for (const char* kind : {"constant", "step", "cosine", "polynomial", "plateau"})
    for (const double warmup : {0.0, 1.0, 5.0, 50.0}) {               // 50: longer than the run
      ScheduleConfig config;
      config.kind = kind, config.warmup_epochs = warmup;
      const SchedulePlan plan{.base_rate = 1, .steps_per_epoch = 3, .epochs = 9};
      for (const float rate : rate_table(config, plan)) ASSERT_GT(rate, 0) << kind << " " << warmup;
    }
}

TEST(Schedule, BeyondTheEndOfTheRunTheLastValueHolds) {
  ScheduleConfig config;
  config.final_fraction = 0.25;
  const SchedulePlan plan{.base_rate = 2, .steps_per_epoch = 5, .epochs = 2};
  EXPECT_DOUBLE_EQ(rate_at(config, plan, 10), 0.5);
  EXPECT_DOUBLE_EQ(rate_at(config, plan, 1000), 0.5);
}

TEST(Schedule, TheBaseRateGrowsWithTheGlobalBatchOnlyIfThereIsAReference) {
  OptimizerConfig config;
  config.learning_rate = 0.1;
  EXPECT_EQ(scaled_rate(config, 1024), 0.1);
  config.reference_batch = 256;
  EXPECT_DOUBLE_EQ(scaled_rate(config, 1024), 0.4);
  EXPECT_DOUBLE_EQ(scaled_rate(config, 64), 0.025);
}

/// Epoch losses: falling, noise around the threshold, a long flat stretch, not a number, a recovery.
std::vector<double> losses() {
  std::vector<double> values = {2.3, 1.9, 1.8999, 1.89982, 1.5, 1.6, 1.6, 1.6, 1.6, 1.6, 1.6, 1.6, 1.6,
                                1.6, 1.6, 1.2, std::nan(""), 1.2, 1.3, 1.1999, 1.1, 1.09999, 1.0999};
  for (int i = 0; i < 30; ++i) values.push_back(1.1 - 0.00004 * i);
  return values;
}

TEST(Plateau, FollowsReduceLROnPlateauEpochForEpoch) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  for (const auto& [patience, gamma, threshold] : {std::tuple{3, 0.1, 1e-4}, std::tuple{0, 0.5, 1e-4}, std::tuple{2, 0.3, 0.0}, std::tuple{10, 0.1, 0.01}}) {
      std::ostringstream script;
    script.precision(17);
    script << "import torch\nnan = float('nan')\noptimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)\n"
           << "p = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=" << patience << ", factor=" << gamma << ", threshold=" << threshold
           << ", eps=0)\n"                // eps: torch stops below a change of 1e-8 of the rate; ours goes on
           << "for loss in [";
    for (const double loss : losses()) script << loss << ",";
    script << "]:\n    p.step(loss)\n    print(optimizer.param_groups[0]['lr'])\n";
    const auto want = numbers(run_python(script.str()));
    ScheduleConfig config;
    config.patience = patience, config.gamma = gamma, config.threshold = threshold;
    Plateau plateau;
    ASSERT_EQ(want.size(), losses().size());
    for (std::size_t e = 0; e < want.size(); ++e) {
      plateau.observe(config, losses()[e]);
      ASSERT_NEAR(plateau.factor, want[e], 1e-6 * want[e]) << "epoch " << e << ", patience " << patience;   // f32, a rounding a fall
    }
  }
}

/// The rates of an input file for a data set of so many images on so many ranks.
struct InputRates {
  SchedulePlan plan;
  ScheduleConfig config;
  double at(std::int64_t step) const { return rate_at(config, plan, step); }
};
InputRates rates_of(const std::string& name, std::int64_t images, std::int64_t ranks) {
  const auto inputs = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "inputs";
  const Config config = read_config((inputs / (name + ".toml")).string(), {});
  const std::int64_t batch = config.data.global_batch > 0 ? config.data.global_batch : config.data.rank_batch * ranks;
  const std::int64_t per_epoch = config.data.last_batch == "drop" ? images / batch : (images + batch - 1) / batch;
  return {{scaled_rate(config.optimizer, batch), per_epoch, config.run.epochs}, config.schedule};
}

TEST(InputFiles, HaveTheRatesOfTheirRecipes) {
  const auto he = rates_of("cifar10_resnet20", 50000, 2);
  EXPECT_GE(he.plan.steps_per_epoch * he.plan.epochs, 64000);
  for (const auto& [step, rate] : {std::pair{0, 0.1}, std::pair{31999, 0.1}, std::pair{32000, 0.01}, std::pair{47999, 0.01}, std::pair{48000, 0.001}})
    EXPECT_NEAR(he.at(step), rate, 1e-15) << step;
  const auto deep = rates_of("cifar10_resnet110", 50000, 2);
  EXPECT_NEAR(deep.at(0), 0.1 / 400, 1e-15);
  EXPECT_NEAR(deep.at(399), 0.1, 1e-15);
  EXPECT_NEAR(deep.at(32000), 0.01, 1e-15);
  const auto imagenet = rates_of("imagenet_resnet50", 1281167, 8);              // 626 steps an epoch
  EXPECT_NEAR(imagenet.at(0), 0.8 / (5 * 626), 1e-15);
  EXPECT_NEAR(imagenet.at(5 * 626 - 1), 0.8, 1e-15);
  EXPECT_NEAR(imagenet.at(30 * 626 - 1), 0.8, 1e-15);
  EXPECT_NEAR(imagenet.at(30 * 626), 0.08, 1e-15);
  EXPECT_NEAR(imagenet.at(80 * 626), 0.0008, 1e-15);
  // The script's lines, s / (total / 4) and (total - s) / (3 total / 4): an update more of warm-up, 1/728 of the peak, is all that differs.
  const auto cycle = rates_of("cifar10_resnet18", 50000, 1);
  ASSERT_EQ(cycle.plan.steps_per_epoch * cycle.plan.epochs, 2910);
  for (std::int64_t s = 0; s < 2910; ++s) {
    const double x = static_cast<double>(s), of_script = x < 727.5 ? x / 727.5 : (2910 - x) / 2182.5;
    EXPECT_NEAR(cycle.at(s), 0.4 * of_script, 0.4 / 727) << s;
    EXPECT_GT(cycle.at(s), 0);
  }
  EXPECT_DOUBLE_EQ(cycle.at(727), 0.4);
  const auto flowers = rates_of("flowers_resnet34", 2939, 4);                   // 45 steps an epoch
  EXPECT_NEAR(flowers.at(44), 0.004, 1e-15);
  EXPECT_NEAR(flowers.at(15 * 45), 0.004 * 0.55, 1e-15);
  EXPECT_NEAR(rates_of("cifar10_lenet", 50000, 4).at(0), 0.004, 1e-15);
  EXPECT_NEAR(rates_of("cifar10_resnet18_ddp", 50000, 4).at(60 * 196), 0.001, 1e-15);
  EXPECT_NEAR(rates_of("cifar10_alexnet", 50000, 2).at(5000), 1e-4, 1e-15);
}

}  // namespace
}  // namespace lockstep::test
