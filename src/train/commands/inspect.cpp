// `lockstep inspect FILE...`: header, counts, classes and checksums of shards; header and progress of checkpoints.
#include <iostream>

#include "storage/shards.hpp"
#include "train/checkpoint.hpp"
#include "train/commands/commands.hpp"

namespace lockstep {
namespace {

std::string inspect_checkpoint(const std::string& path) {
  const CheckpointHeader h = read_checkpoint_header(path);
  if (h.is_imported())
    return text_of(path, ": checkpoint of ", h.model, ", ", h.classes, " outputs, imported: without a run's progress or optimizer\n  ", h.versions, "\n  whole: its checksum agrees\n");
  const RunProgress p = read_checkpoint_progress(path);
  return text_of(path, ": checkpoint of ", h.model, ", ", h.classes, " outputs, step ", p.step, ", epoch ", p.epoch, ", ", p.optimizer.updates, " updates, ", p.optimizer.skipped,
                 " skipped, best top-1 ", p.best_top1, " at step ", p.best_step, "\n  global batch ", h.global_batch, ", seed ", h.seed, ", ", counted(h.ranks, "rank"),
                 ", ", h.class_names.size(), " classes in the shards\n  ", h.versions, "\n  whole: its checksum agrees\n");
}

}  // namespace

int run_inspect(const Invocation& invocation) {
  for (const std::string& path : invocation.arguments) std::cout << (is_checkpoint(path) ? inspect_checkpoint(path) : inspect_shard(path)) << std::flush;
  return exit_done;
}

}  // namespace lockstep
