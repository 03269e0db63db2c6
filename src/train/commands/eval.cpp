// `lockstep eval INPUT.toml`: evaluates a checkpoint of the input's run.  Takes no run lock, so it may run beside training.
#include <filesystem>
#include <iostream>

#include "train/checkpoint_folder.hpp"
#include "train/commands/commands.hpp"
#include "train/evaluate.hpp"
#include "train/metrics.hpp"
#include "train/run_folder.hpp"
#include "train/snapshot.hpp"

namespace lockstep {
namespace {

Found find_checkpoint(const Config& config, const std::string& folder) {
  if (!config.eval.checkpoint.empty()) {
    require(std::filesystem::is_regular_file(config.eval.checkpoint), "eval.checkpoint = \"", config.eval.checkpoint, "\": no such file. Name a file of checkpoints/ in a run's folder, or leave it empty.");
    return {.path = config.eval.checkpoint, .refused = {}};
  }
  Found found = best_or_newest(folder + "/checkpoints");
  require(!found.path.empty(), folder, " has no whole checkpoint", found.refused.empty() ? "" : " (" + found.refused[0] + ")", ". Train first, or set eval.checkpoint.");
  return found;
}

/// Calls read(path).  Training beside us may remove an old checkpoint after it was chosen: then the choice is made anew.
template <class Read>
auto read_found(const Config& config, const std::string& folder, Found& found, Read&& read) {
  for (int attempt = 1;; ++attempt) {
    try {
      return read(found.path);
    } catch (const Error&) {
      if (attempt == 10 || !config.eval.checkpoint.empty() || std::filesystem::exists(found.path)) throw;
      found = find_checkpoint(config, folder);
    }
  }
}

}  // namespace

int run_eval(const Invocation& invocation, Communicator& comm, Device& device) {
  Config config = read_config(invocation.arguments.at(0), invocation.overrides);
  require(!config.data.path.empty(), "data.path is not set. Give the folder of shards that lockstep-convert has made.");
  const std::string folder = run_folder(config.run);
  Found found;
  CheckpointHeader header;
  if (comm.rank() == 0) {
    found = find_checkpoint(config, folder);
    header = read_found(config, folder, found, read_checkpoint_header);
  }
  header.config = comm.broadcast(header.config, 0);
  // Normalization, classes and batch are those of the run, whatever data is evaluated.
  const Config trained = parse_config(header.config, "the checkpoint's configuration");
  if (config.data.mean.empty()) config.data.mean = trained.data.mean, config.data.std = trained.data.std;
  if (config.model.classes == 0) config.model.classes = trained.model.classes;
  if (config.data.global_batch == 0 && config.data.rank_batch == 0) config.data.global_batch = trained.data.global_batch;

  const Dataset dataset(config.data.path, config.data.eval_split);
  if (comm.rank() == 0) require_same_classes(found.path, header.class_names, dataset.header().classes, "Convert the images with the same class folders.");
  // One image a rank is enough of a training batch here: nothing is trained.
  const std::int64_t batch = config.data.eval_batch > 0 ? config.data.eval_batch : part_of(global_batch_of(config.data, comm.size()), 0, comm.size()).size();
  config.data.eval_batch = std::min(batch, std::max<std::int64_t>(1, (dataset.size() + comm.size() - 1) / comm.size()));
  config.data.rank_batch = 0, config.data.global_batch = comm.size(), config.data.last_batch = "keep", config.data.micro_batches = 1;
  config.data.cache = "none";            // each image is wanted once
  RunPlan plan = plan_run(config, dataset.header(), dataset.size(), comm.size());

  limit_memory(device, config.device);
  Network network(device, comm, plan.config, plan.images, beside_evaluation(device, plan, dataset));
  network.allocate();
  TrainingState state;
  if (comm.rank() == 0) state = read_found(config, folder, found, [&](const std::string& path) { return read_checkpoint(path, network.parameters(), plan.config.model, false, {}); });
  restore_weights(device, comm, network, state);
  Progress progress;
  Evaluator evaluator(device, comm, network, dataset, plan, progress);
  const std::optional<Evaluation> result = evaluator.run([] { return false; });
  if (comm.rank() != 0) return exit_done;
  const EvalRecord record{.step = state.progress.step, .epoch = static_cast<double>(state.progress.step) / static_cast<double>(header.steps_per_epoch),
                          .loss = result->loss, .top1 = result->top1, .top5 = result->top5,
                          .images = result->images, .checkpoint = found.path, .split = config.data.eval_split};
  for (const std::string& refused : found.refused) std::cout << "not taken: " << refused << "\n";
  std::cout << "checkpoint " << found.path << ", split " << config.data.eval_split << "\n" << class_table(*result, dataset.header().classes, 20);
  Console("").eval(record);
  if (std::filesystem::is_directory(folder)) {
    append_eval_record(folder, record);
    write_evaluation(folder, *result, dataset.header().classes, record.step, found.path);
    std::cout << "written: " << folder << "/evaluation.json, " << folder << "/metrics.jsonl\n";
  }
  return exit_done;
}

}  // namespace lockstep
