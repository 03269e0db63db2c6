// weights: what a network starts from: safetensors, PyTorch's .pth, or a checkpoint of lockstep, told apart by their first bytes.
// In: a file and a network's layout.  Out: its values where name and shape agree, and a table that says what was loaded, skipped and missing.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.hpp"
#include "storage/named_array.hpp"
#include "train/checkpoint.hpp"

namespace lockstep {

struct Weights {
  WeightFile file;                       // names without the "module." of DataParallel
  std::vector<std::string> class_names;  // of a checkpoint of lockstep; else none
  std::string config;                    // of a checkpoint of lockstep: its resolved TOML; else empty
};

/// Error in one line for what is none of these files, or a damaged one.
Weights read_weights(const std::string& path);
/// data.mean and data.std are those that the weights were trained with, where neither is set and `trained` (a resolved TOML, or nothing) says them.
void take_normalization(Config& config, const std::string& trained, const std::string& origin);

struct KnownModel {
  std::string name, stem;                // as in [model]
  std::int64_t classes = 0;              // 0: the file has no last layer
  std::int64_t tensors = 0;              // that were looked for
};
/// The largest of lockstep's networks all of whose tensors before the last layer are there, with their shapes.
std::optional<KnownModel> recognized(const WeightFile& file);
/// The network on images large enough for it, to know its tensors: [model] has name, stem and classes.
Graph model_graph(const ModelConfig& model);
/// Names in the order of PyTorch's state_dict, batch norm's buffers among them.
std::vector<std::string> state_dict_names(const Graph& graph);

/// Error where the file is of another of lockstep's networks, and not of a part of this one.
void require_network(const WeightFile& file, const ModelConfig& model);

struct TakenWeights {
  std::vector<std::string> table;        // lines for the log
  std::int64_t batches_tracked = 0;      // the most that a batch norm of the file has counted
};
/// Into state.master and state.running, in `layout`.  class_names: of the shards; empty: not compared.
/// Errors: require_network's, nothing in it fits, a value that is taken is not finite, a last layer for other classes.
TakenWeights take_weights(const Weights& weights, const ModelConfig& model, const std::vector<std::string>& class_names, const Parameters& layout, TrainingState& state);

}  // namespace lockstep
