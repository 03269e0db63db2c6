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

std::string require_classes(const std::string& path, const CheckpointHeader& header, std::int64_t asked, const std::string& shards, const std::vector<std::string>& of_shards) {
  if (!header.class_names.empty()) {
    require_same_classes(path, header.class_names, shards, of_shards, "Convert the images with the same class folders.");
    return "";
  }
  const std::int64_t classes = std::ssize(of_shards);   // too few outputs: the plan refuses them
  require(header.classes <= classes || header.classes == asked, path, " has ", header.classes, " outputs and no names of classes, ", shards, " has ", classes,
          " classes. Name shards of its classes, or set model.classes = ", header.classes, " if its first outputs are those.");
  return text_of(path, " has no names of classes: its outputs are taken for the classes of ", shards, ", in order");
}

void take_from_run(Config& config, const CheckpointHeader& header) {
  const Config trained = parse_config(header.config, "the checkpoint's configuration");
  if (config.data.mean.empty()) config.data.mean = trained.data.mean, config.data.std = trained.data.std;
  if (config.model.classes == 0) config.model.classes = trained.model.classes;
  if (config.data.global_batch == 0 && config.data.rank_batch == 0) config.data.global_batch = trained.data.global_batch;
}

}  // namespace lockstep
