// report: a run's folder -> one page that shows it, and several runs' folders -> one page that compares them.
// In: metrics.jsonl, evaluation.json, config.toml, log; of the shards the pictures of the worst mistakes.  Out: HTML that needs no network.
// Whatever is missing is left out: a run that has only just started has a page too.
#pragma once
#include <string>
#include <vector>

#include "base/config.hpp"
#include "storage/shards.hpp"
#include "train/records.hpp"

namespace lockstep {

/// A run as its folder shows it.
struct RunHistory {
  std::string folder;
  Config config;                         // of config.toml
  std::vector<StartRecord> starts;
  std::vector<TrainRecord> train;
  std::vector<EvalRecord> evals;         // of training; not those of `lockstep eval`
  std::vector<PhaseRecord> phases;
  double steps_per_epoch() const;        // 1 where nothing was recorded
  PhaseRecord seconds() const;           // all of `phases` together
};
/// Error where the folder has no config.toml.
RunHistory read_history(const std::string& folder);
/// Seconds of all phases.
double total_seconds(const PhaseRecord& phases);

/// <folder>/report.html, the whole page or what was there before.  evaluated: the images of evaluation.json where the caller has them open.
/// Throws when it cannot be written.  The path.
std::string write_report(const std::string& folder, const Dataset* evaluated = nullptr);
/// The runs side by side; those that differ in run.seed and run.name alone are one group, with its mean and spread.
std::string comparison_page(const std::vector<std::string>& folders);

}  // namespace lockstep
