// `lockstep eval INPUT.toml`: evaluates a checkpoint of the input's run.  Takes no run lock, so it may run beside training.
#include <filesystem>
#include <iostream>

#include "train/agreement.hpp"
#include "train/chosen_checkpoint.hpp"
#include "train/commands/commands.hpp"
#include "train/commands/watch.hpp"
#include "train/evaluate.hpp"
#include "train/metrics.hpp"
#include "train/report/report.hpp"
#include "train/run_folder.hpp"
#include "train/snapshot.hpp"

namespace lockstep {

int run_eval(const Invocation& invocation, Communicator& comm, Device& device) {
  Config config = read_config(invocation.arguments.at(0), invocation.overrides);
  Watch watch(comm, config.run);
  require_same_config(comm, config);
  require(!config.data.path.empty(), "data.path is not set. Give the folder of shards that lockstep-convert has made.");
  const std::string folder = run_folder(config.run);
  std::optional<ChosenCheckpoint> chosen;  // rank 0
  CheckpointHeader header;
  if (comm.rank() == 0) header = chosen.emplace(config, folder).read(read_checkpoint_header);
  header.config = comm.broadcast(header.config, 0);
  const std::int64_t asked = config.model.classes;
  take_from_run(config, header);         // whatever data is evaluated

  const Dataset dataset(config.data.path, config.data.eval_split);
  require_same_shards(comm, dataset);
  std::string note;
  if (comm.rank() == 0) note = require_classes(chosen->path(), header, asked, config.data.path, dataset.header().classes);
  const RunPlan plan = plan_evaluation(config, dataset.header(), dataset.size(), comm.size());

  limit_memory(device, config.device, comm.local_size());
  Network network(device, comm, plan.config, plan.images, beside_evaluation(device, plan, dataset));
  network.allocate();
  TrainingState state;
  if (comm.rank() == 0) state = chosen->read([&](const std::string& path) { return read_checkpoint(path, network.parameters(), plan.config.model, false, {}); });
  restore_weights(device, comm, network, state);
  Evaluator evaluator(device, comm, network, dataset, plan, watch.progress);
  watch.progress.phase = Phase::warm_up;
  evaluator.prepare();
  watch.progress.phase = Phase::evaluation;
  const std::optional<Evaluation> result = evaluator.run([] { return false; });
  watch.progress.phase = Phase::finishing;
  if (comm.rank() != 0) return exit_done;
  const EvalRecord record{.step = state.progress.step, .epoch = static_cast<double>(state.progress.step) / static_cast<double>(header.steps_per_epoch),
                          .loss = result->loss, .top1 = result->top1, .top5 = result->top5,
                          .images = result->images, .checkpoint = chosen->path(), .split = config.data.eval_split};
  for (const std::string& refused : chosen->refused()) std::cout << "not taken: " << refused << "\n";
  std::cout << "checkpoint " << record.checkpoint << ", split " << config.data.eval_split << "\n" << (note.empty() ? "" : note + "\n") << class_table(*result, dataset.header().classes, 20);
  Console("").eval(record);
  if (std::filesystem::is_directory(folder)) {
    append_eval_record(folder, record);
    write_evaluation(folder, {.step = record.step, .checkpoint = record.checkpoint, .data = config.data.path, .split = config.data.eval_split, .class_names = dataset.header().classes, .result = *result});
    std::cout << "written: " << folder << "/evaluation.json, " << folder << "/metrics.jsonl\n";
    try {
      std::cout << "written: " << write_report(folder, &dataset) << "\n";
    } catch (const std::exception& error) {   // the numbers are said and kept
      std::cout << "warning: no report: " << error.what() << "\n";
    }
  }
  return exit_done;
}

}  // namespace lockstep
