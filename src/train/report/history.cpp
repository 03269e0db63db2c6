#include "train/report/report.hpp"
#include "train/run_folder.hpp"

namespace lockstep {

RunHistory read_history(const std::string& folder) {
  RunHistory history{.folder = folder, .config = find_run(folder, {}).config, .starts = {}, .train = {}, .evals = {}, .phases = {}};
  for (Record& record : read_records(folder)) {
    if (auto* start = std::get_if<StartRecord>(&record)) history.starts.push_back(std::move(*start));
    if (const auto* train = std::get_if<TrainRecord>(&record)) history.train.push_back(*train);
    if (const auto* eval = std::get_if<EvalRecord>(&record); eval && eval->checkpoint.empty()) history.evals.push_back(*eval);
    if (const auto* phases = std::get_if<PhaseRecord>(&record)) history.phases.push_back(*phases);
  }
  return history;
}

double RunHistory::steps_per_epoch() const {
  const double step = train.empty() ? 0 : static_cast<double>(train.back().step), epoch = train.empty() ? 0 : train.back().epoch;
  return step > 0 && epoch > 0 ? step / epoch : 1;
}

PhaseRecord RunHistory::seconds() const {
  PhaseRecord sum;
  for (const PhaseRecord& p : phases) {
    sum.start += p.start, sum.training += p.training, sum.data_wait += p.data_wait, sum.evaluation += p.evaluation, sum.checkpoint += p.checkpoint;
    sum.step = p.step;
  }
  return sum;
}

double total_seconds(const PhaseRecord& p) { return p.start + p.training + p.data_wait + p.evaluation + p.checkpoint; }

}  // namespace lockstep
