#include "train/chosen_checkpoint.hpp"

namespace lockstep {

void ChosenCheckpoint::choose() {
  if (!asked_.empty()) {
    require(std::filesystem::is_regular_file(asked_), "eval.checkpoint = \"", asked_, "\": no such file. Name a file of checkpoints/ in a run's folder, or leave it empty.");
    found_ = {.path = asked_, .refused = {}};
    return;
  }
  found_ = best_or_newest(folder_ + "/checkpoints");
  require(!found_.path.empty(), folder_, " has no whole checkpoint", found_.refused.empty() ? "" : " (" + found_.refused[0] + ")", ". Train first, or set eval.checkpoint.");
}

void take_from_run(Config& config, const CheckpointHeader& header) {
  const Config trained = parse_config(header.config, "the checkpoint's configuration");
  if (config.data.mean.empty()) config.data.mean = trained.data.mean, config.data.std = trained.data.std;
  if (config.model.classes == 0) config.model.classes = trained.model.classes;
  if (config.data.global_batch == 0 && config.data.rank_batch == 0) config.data.global_batch = trained.data.global_batch;
}

}  // namespace lockstep
