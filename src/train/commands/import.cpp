// `lockstep import WEIGHTS CHECKPOINT [model.name=NAME ...]`: a checkpoint of lockstep from safetensors or PyTorch's .pth.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "base/build_info.hpp"
#include "graph/tasks.hpp"
#include "train/commands/commands.hpp"
#include "train/weights.hpp"

namespace lockstep {
namespace {

/// Of torchvision's weights for ImageNet.
const std::vector<double> imagenet_mean = {0.485, 0.456, 0.406}, imagenet_std = {0.229, 0.224, 0.225};

/// The model that the file is of, unless the overrides name one; with so many outputs as the file has.
Config config_for(const Weights& weights, const Invocation& invocation) {
  Config config = read_config("", invocation.overrides);
  take_normalization(config, weights.config, weights.file.path);
  const bool is_named = std::ranges::any_of(invocation.overrides, [](const std::string& word) { return word.starts_with("model.name"); });
  const std::optional<KnownModel> known = recognized(weights.file);
  require(known || is_named, weights.file.path, ": its ", counted(std::ssize(weights.file.arrays), "tensor"), weights.file.arrays.empty() ? "" : " (\"" + weights.file.arrays[0].name + "\", ...)",
          " are those of none of lockstep's networks: it is of another architecture. If it is nearly one, name that: model.name=NAME.");
  if (known) {
    if (!is_named) config.model.name = known->name;
    config.model.stem = known->stem;
    if (config.model.classes == 0) config.model.classes = known->classes;
  }
  require(config.model.classes > 0, weights.file.path, " has no last layer that says how many classes there are. Set model.classes=N; the layer then starts anew.");
  if (config.data.mean.empty() && config.model.classes == 1000 && config.model.stem == "imagenet") config.data.mean = imagenet_mean, config.data.std = imagenet_std;
  return config;
}

/// A checkpoint of a run cannot be made again from its weights.
bool may_be_replaced(const std::string& path) {
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) return true;
  try {
    return read_checkpoint_header(path).is_imported();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

int run_import(const Invocation& invocation) {
  const std::string &from = invocation.arguments.at(0), &to = invocation.arguments.at(1);
  require(to.ends_with(".h5"), to, ": a checkpoint's name ends in .h5. Give the weights first, then the checkpoint to make.");
  require(may_be_replaced(to), to, ": is there already, and lockstep import has not made it. Name another file.");
  const Weights weights = read_weights(from);
  const Config config = config_for(weights, invocation);

  require_network(weights.file, config.model);
  const Graph graph = model_graph(config.model);
  const Parameters layout(finish_order(graph), std::vector<BufferSpec>(graph.buffer_specs().begin(), graph.buffer_specs().end()), DType::f32);
  Parameters::Start start = layout.start_values(static_cast<std::uint64_t>(config.run.seed));
  TrainingState state;
  state.master = std::move(start.master), state.running = std::move(start.running);
  const TakenWeights taken = take_weights(weights, config.model, {}, layout, state);
  state.progress.optimizer.updates = taken.batches_tracked;   // num_batches_tracked is written from it
  write_checkpoint(to, {.model = config.model.name, .classes = config.model.classes, .class_names = weights.class_names, .seed = config.run.seed, .config = to_toml(config), .fit = "", .rotate = "",
                        .versions = text_of("lockstep ", build_info().version, " ", build_info().git_hash, ", imported from ", from)}, state, layout, [] {});
  for (const std::string& line : taken.table) std::cout << line << "\n";
  std::cout << "written   " << to << ": " << config.model.name << ", " << counted(config.model.classes, "output")
            << (config.data.mean == imagenet_mean ? "; images are to be normalized by ImageNet's mean and std, unless data.mean and data.std say else" : "") << "\n";
  return exit_done;
}

}  // namespace lockstep
