// checkpoint: all state of a run <-> one sealed HDF5 file.
// /model/<torchvision name> f32 (convolutions OIHW, linear [out, in]; num_batches_tracked i64), /optimizer/<moment>/<name>, /progress/...
// Written aside, sealed, fsynced, renamed, the folder fsynced; never opened by libhdf5 before its seal was verified.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "graph/graph.hpp"
#include "optim/optimizer.hpp"
#include "optim/schedule.hpp"
#include "storage/named_array.hpp"
#include "tensor/parameters.hpp"

namespace lockstep {

/// Where a run is: everything that is no weight.
struct RunProgress {
  std::int64_t step = 0, epoch = 0;      // batches consumed; epoch = step / steps_per_epoch
  std::int64_t evaluated_step = -1;      // of the last finished evaluation
  std::int64_t best_step = -1;
  double best_top1 = -1;
  OptimizerStatus optimizer;
  Plateau plateau;
  MetricSums since_record, since_epoch;  // over all ranks; since the last train record, and since the epoch began
};

struct MomentValues {
  std::string name;                      // "momentum_buffer", "exp_avg", "exp_avg_sq"
  std::vector<float> values;             // flat, stored layout
};

/// Host copies, flat, in the stored layout of `Parameters`.
struct TrainingState {
  RunProgress progress;
  std::vector<float> master;
  std::vector<float> running;            // rank 0's group: the run's
  std::vector<float> group_running;      // [groups, buffer elements]; one group: equals running
  std::vector<MomentValues> moments;
};

/// What must agree between a checkpoint and who loads it, and what is kept for the reader.
struct CheckpointHeader {
  std::string model;
  std::int64_t classes = 0;              // outputs of the network
  std::vector<std::string> class_names;  // of the shards
  std::int64_t global_batch = 0, seed = 0, ranks = 0, micro_batches = 1, steps_per_epoch = 1;
  std::string config;                    // resolved TOML
  std::string fit, rotate;               // how convert made the images
  std::int64_t size = 0;
  std::string versions;
  /// Made by `lockstep import`: without a run, a batch, an optimizer's state.
  bool is_imported() const { return global_batch == 0; }
};

/// Throws when the disk is full or a value is not finite (such a checkpoint is never written); nothing is left behind then.
void write_checkpoint(const std::string& path, const CheckpointHeader& header, const TrainingState& state, const Parameters& layout,
                      const std::function<void()>& tick);
/// Whether a sealed file is a checkpoint.  Error where its seal is broken.
bool is_checkpoint(const std::string& path);
/// Header alone; verifies the seal.
CheckpointHeader read_checkpoint_header(const std::string& path);
RunProgress read_checkpoint_progress(const std::string& path);
/// Weights into `layout`'s order.  Error naming file, model, count or tensor when they do not fit.  with_optimizer: moments must be there too.
TrainingState read_checkpoint(const std::string& path, const Parameters& layout, const ModelConfig& model, bool with_optimizer,
                              const std::vector<std::string>& moment_names);
/// What lies in /model: f32, num_batches_tracked i64, under torchvision's names.  The header comes with it.
WeightFile read_checkpoint_weights(const std::string& path, CheckpointHeader& header);
/// Error, ending with `advice`, where a checkpoint's classes are known and not the shards'.  shards: what they are called in it.
void require_same_classes(const std::string& path, const std::vector<std::string>& of_file, const std::string& shards, const std::vector<std::string>& of_shards, const std::string& advice);

}  // namespace lockstep
