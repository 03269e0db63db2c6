#include "optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep {
namespace {

/// Times that the rate has fallen by the start of update s.  A whole boundary such as 3 x 1.1 epochs may lie a rounding above an integer.
std::int64_t falls(const ScheduleConfig& config, const SchedulePlan& plan, std::int64_t s) {
  const auto steps = [&](double epochs) { return epochs * static_cast<double>(plan.steps_per_epoch); };
  if (config.kind == "step") return static_cast<std::int64_t>(std::floor(static_cast<double>(s) / steps(config.step_epochs) + 1e-9));
  return std::ranges::count_if(config.milestones_epochs, [&](double epoch) { return static_cast<double>(s) >= steps(epoch) - 1e-6; }) +
         std::ranges::count_if(config.milestones_steps, [&](std::int64_t step) { return s >= step; });
}

/// How much of what follows warm-up is done, 0 to 1.
double done_fraction(const ScheduleConfig& config, const SchedulePlan& plan, std::int64_t s, double warmup_steps) {
  const auto epoch_steps = static_cast<double>(plan.steps_per_epoch);
  double at = static_cast<double>(s), all = epoch_steps * static_cast<double>(plan.epochs), before = warmup_steps;
  if (config.by == "epoch") at = std::floor(at / epoch_steps), all = static_cast<double>(plan.epochs), before = config.warmup_epochs;
  return std::clamp((at - before) / std::max(all - before, 1.0), 0.0, 1.0);
}

}  // namespace

double scaled_rate(const OptimizerConfig& config, std::int64_t global_batch) {
  if (config.reference_batch == 0) return config.learning_rate;
  return config.learning_rate * static_cast<double>(global_batch) / static_cast<double>(config.reference_batch);
}

double rate_at(const ScheduleConfig& config, const SchedulePlan& plan, std::int64_t update) {
  const double warmup = std::round(config.warmup_epochs * static_cast<double>(plan.steps_per_epoch));
  const double ramp = static_cast<double>(update) < warmup ? static_cast<double>(update + 1) / warmup : 1;
  const double done = done_fraction(config, plan, update, warmup), last = config.final_fraction;
  double shape = 1;                      // constant, plateau
  if (config.kind == "step" || config.kind == "multistep") shape = std::pow(config.gamma, static_cast<double>(falls(config, plan, update)));
  else if (config.kind == "cosine") shape = last + (1 - last) * (1 + std::cos(std::numbers::pi * done)) / 2;
  else if (config.kind == "polynomial") shape = last + (1 - last) * std::pow(1 - done, config.power);
  return plan.base_rate * ramp * shape;
}

std::vector<float> rate_table(const ScheduleConfig& config, const SchedulePlan& plan) {
  std::vector<float> rates(static_cast<std::size_t>(plan.steps_per_epoch * plan.epochs));
  for (std::size_t s = 0; s < rates.size(); ++s) rates[s] = static_cast<float>(rate_at(config, plan, static_cast<std::int64_t>(s)));
  return rates;
}

void Plateau::observe(const ScheduleConfig& config, double epoch_loss) {
  if (epoch_loss < best * (1 - config.threshold)) {
    best = epoch_loss, bad_epochs = 0;
    return;
  }
  if (++bad_epochs <= config.patience) return;
  factor *= static_cast<float>(config.gamma), bad_epochs = 0;
}

}  // namespace lockstep
