// `lockstep train INPUT.toml`: the main job.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/build_info.hpp"
#include "storage/aside_file.hpp"
#include "train/agreement.hpp"
#include "train/commands/commands.hpp"
#include "train/commands/watch.hpp"
#include "train/run_folder.hpp"
#include "train/staged_split.hpp"
#include "train/trainer.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Rank 0 decides, all hear it.
ResumeDecision agree_on_resume(Communicator& comm, const Config& config) {
  ResumeDecision decision;
  if (comm.rank() == 0) decision = decide_resume(config);
  decision.checkpoint = comm.broadcast(decision.checkpoint, 0);
  decision.config = comm.broadcast(decision.config, 0);
  comm.broadcast(&decision.global_batch, sizeof decision.global_batch, 0);
  return decision;
}

bool has_eval(const Config& config) { return std::ranges::count(splits_in(config.data.path), config.data.eval_split) > 0; }

/// Rank 0 reads the weights that a new run starts from; all take the normalization that they were trained with, at a resume too.
std::optional<Weights> open_weights(Communicator& comm, Config& config, const ResumeDecision& decision) {
  std::optional<Weights> weights;
  if (config.model.weights.empty()) return weights;
  std::string trained = decision.config;
  if (decision.checkpoint.empty()) {
    if (comm.rank() == 0) weights = read_weights(config.model.weights), require_network(weights->file, config.model);   // before a large network is made
    trained = comm.broadcast(weights ? weights->config : "", 0);
  }
  take_normalization(config, trained, decision.checkpoint.empty() ? config.model.weights : decision.checkpoint);
  return weights;
}

}  // namespace

int run_train(const Invocation& invocation, Communicator& comm, Device& device) {
  Config config = read_config(invocation.arguments.at(0), invocation.overrides);
  Watch watch(comm, config.run);
  require_same_config(comm, config);
  require(!config.data.path.empty(), "data.path is not set. Give the folder of shards that lockstep-convert has made.");
  const std::string folder = run_folder(config.run);
  std::unique_ptr<RunLock> lock;
  if (comm.rank() == 0) {
    std::error_code reason;
    fs::create_directories(fs::path(folder) / "checkpoints", reason);
    require(!reason, folder, " cannot be made: ", reason.message(), ". Check permissions, or set run.outputs.");
    lock = std::make_unique<RunLock>(folder, text_of("host ", host_name(), ", ", invocation.job.empty() ? text_of("pid ", ::getpid()) : invocation.job));
    remove_leftovers(folder);
  }
  const ResumeDecision decision = agree_on_resume(comm, config);

  Console console(comm.rank() == 0 ? folder : "");
  const auto say = [&console](const std::string& line) { console.say(line); };
  const auto tick = [&watch] { watch.progress.tick(); };
  const OpenSplit train_split = open_split(comm, config.data, config.data.train_split, say, tick);
  const OpenSplit eval_split = has_eval(config) ? open_split(comm, config.data, config.data.eval_split, say, tick) : OpenSplit{};
  const Dataset& train = *train_split.images;
  const Dataset* eval = eval_split.images.get();
  if (comm.rank() == 0)
    require_same_classes(decision.checkpoint, decision.class_names, config.data.path, train.header().classes, "Convert the images with the same class folders, or start another run.name with model.weights.");
  require_same_shards(comm, train, eval);

  std::optional<Weights> weights = open_weights(comm, config, decision);
  limit_memory(device, config.device, comm.local_size());
  std::vector<std::string> notes = decision.notes;
  if (decision.global_batch > 0 && config.data.rank_batch > 0 && config.data.rank_batch * comm.size() != decision.global_batch) {
    notes.push_back(text_of("data.global_batch stays ", decision.global_batch, ", as in the checkpoint; data.rank_batch = ", config.data.rank_batch, " on ", counted(comm.size(), "rank"),
                            " would be ", config.data.rank_batch * comm.size()));
    config.data.rank_batch = 0;
    config.data.global_batch = decision.global_batch;
  }
  RunSetting setting{.plan = plan_run(config, train.header(), train.size(), comm.size()), .folder = folder, .checkpoint = decision.checkpoint,
                     .weights = weights ? &*weights : nullptr, .train = &train, .eval = eval, .process_start = invocation.process_start};
  const Config& resolved = setting.plan.config;

  const std::string ranks = describe_ranks(comm, device.is_host() ? device.concurrency() : 1);
  const std::vector<std::string> hosts = comm.gather(host_name());
  const std::string own_disk = warning_of_own_disk(comm, folder, "lock", lock ? lock->text() : "");
  if (comm.rank() == 0) {
    if (!decision.checkpoint.empty()) require_same_run(resolved, folder);
    write_whole_file(folder + "/config.toml", {to_toml(resolved)});
    console.say(ranks);
    for (const std::string& note : notes) console.say(note);
    for (const std::string& warning : {lock->warning(), own_disk})
      if (!warning.empty()) console.say(warning);
    if (weights && config.data.mean.empty())
      console.say("warning: data.mean is empty, so images are normalized by the shards' own mean and std; set data.mean and data.std to those that " + config.model.weights + " was trained with.");
    if (!eval) console.say("warning: " + resolved.data.path + " has no split \"" + resolved.data.eval_split + "\": this run evaluates nothing. Set data.eval_split.");
    if (resolved.model.classes > setting.plan.shard_classes)
      console.say(text_of("model.classes = ", resolved.model.classes, ": more than the shards' ", setting.plan.shard_classes, "; the other outputs have no images"));
  }
  Trainer trainer(device, comm, setting, console, watch.progress,
                  {.run = resolved.run.name, .versions = text_of("lockstep ", build_info().version, " ", build_info().configuration, ", ", build_info().libraries),
                   .git_hash = build_info().git_hash, .config = to_toml(resolved), .job = invocation.job, .hosts = hosts, .ranks = comm.size(),
                   .resumed_from = decision.checkpoint, .rank_map = ranks});
  weights.reset();                       // taken; they need not lie in memory while it trains
  return watch.leave_with(trainer.run());
}

}  // namespace lockstep
