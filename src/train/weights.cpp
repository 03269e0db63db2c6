#include "train/weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <regex>
#include <set>

#include "models/models.hpp"
#include "storage/hdf5.hpp"
#include "storage/safetensors.hpp"
#include "storage/torch_file.hpp"
#include "train/name_patterns.hpp"

namespace lockstep {
namespace {

using Arrays = std::map<std::string_view, const NamedArray*>;
constexpr std::string_view parallel = "module.", count_suffix = ".num_batches_tracked";
constexpr std::size_t shown_lines = 12;

Arrays by_name(const WeightFile& file) {
  Arrays arrays;
  for (const NamedArray& array : file.arrays) arrays[array.name] = &array;
  return arrays;
}

bool has(const Arrays& arrays, const std::string& name, const std::vector<std::int64_t>& shape) {
  const auto found = arrays.find(name);
  return found != arrays.end() && found->second->shape == shape;
}


void remove_parallel(WeightFile& file) {
  std::set<std::string> names;
  for (NamedArray& array : file.arrays) {
    if (array.name.starts_with(parallel)) array.name.erase(0, parallel.size());
    require(names.insert(array.name).second, file.path, " holds ", array.name, " twice, with and without \"", parallel, "\". Save one of them.");
  }
}

/// "layer1.0.conv1.weight, fc.bias and 3 more".
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), shown_lines); ++i) text += (i ? ", " : "") + names[i];
  return names.size() > shown_lines ? text_of(text, " and ", names.size() - shown_lines, " more") : text;
}

/// ResNet-50 v1 (stride on a bottleneck's first convolution) and v1.5 (on its second) have the same tensors: only what a file says of itself tells them apart.
void require_not_v1(const WeightFile& file, const std::string& model) {
  static const std::regex v1("resnet[-_ ]?(50|101|152)[-_ ]?v1(?![._-]?5|[b-d0-9])", std::regex::icase);
  if (model != "resnet50" && model != "resnet101" && model != "resnet152") return;
  for (const auto& [key, text] : file.notes)
    require(!std::regex_search(text, v1), file.path, " says of itself: ", key, " = \"", text, "\". That is v1, with a bottleneck's stride on its 1x1 convolution; lockstep's ", model,
            ", as torchvision's, is v1.5, with the stride on the 3x3. The tensors have the same names and shapes, but compute something else: name a file of v1.5.");
}

std::string architecture(const KnownModel& m) { return text_of(m.name, m.stem == "cifar" ? " with CIFAR stem" : ""); }

/// A tensor of the network, and where its values go.
struct Target {
  std::string name;
  std::vector<std::int64_t> shape;
  const ParameterSpec* spec;             // null: a running statistic
  float* values;
};

std::vector<Target> targets_of(const Parameters& layout, TrainingState& state) {
  std::vector<Target> targets;
  for (const Slice& slice : layout.slices()) targets.push_back({slice.spec.name, slice.spec.file_shape, &slice.spec, state.master.data() + slice.offset});
  std::ranges::sort(targets, {}, [](const Target& t) { return t.spec->ordinal; });
  for (std::size_t i = 0; i < layout.buffers().size(); ++i)
    targets.push_back({layout.buffers()[i].name, {layout.buffers()[i].channels}, nullptr, state.running.data() + layout.buffer_offset(i)});
  return targets;
}

void take(const WeightFile& file, const NamedArray& array, const Target& target) {
  std::vector<float> values;
  try {
    values = floats_of(array);
  } catch (const Error& error) {
    fail(file.path, ": ", error.what());
  }
  for (std::size_t i = 0; i < values.size(); ++i)
    require(std::isfinite(values[i]), file.path, ": element ", i, " of ", array.name, " is ", values[i], ", not a finite number: the run that made it has diverged, or the file is damaged. Name another file.");
  if (target.spec) from_file_layout(*target.spec, values.data(), target.values);
  else std::ranges::copy(values, target.values);
}

std::int64_t count_in(const NamedArray& array) {
  std::int64_t count = 0;
  if (array.type == ElementType::i64 && element_count(array.shape) == 1) std::memcpy(&count, array.data, sizeof count);
  return count;
}

}  // namespace

Weights read_weights(const std::string& path) {
  Weights weights;
  if (is_hdf5(path)) {                   // its seal is verified, then what is wanted is read: optimizer states are not
    CheckpointHeader header;
    weights.file = read_checkpoint_weights(path, header);
    weights.class_names = header.class_names, weights.config = header.config;
    return weights;
  }
  weights.file.bytes = bytes_of_file(path);
  weights.file.path = path;
  const std::vector<char>& bytes = weights.file.bytes;
  if (is_safetensors(bytes) || path.ends_with(".safetensors")) {   // first: a header of 640 bytes begins as a pickle does
    read_safetensors(weights.file);
  } else if (is_torch_file(bytes) || path.ends_with(".pth") || path.ends_with(".pt")) {
    read_torch_file(weights.file);
  } else {
    fail(path, " is no file of weights: neither safetensors, nor PyTorch's .pth, nor a checkpoint of lockstep. Check the path.");
  }
  remove_parallel(weights.file);
  return weights;
}

void take_normalization(Config& config, const std::string& trained, const std::string& origin) {
  if (trained.empty() || !config.data.mean.empty()) return;
  const Config of_weights = parse_config(trained, "the configuration in " + origin);
  config.data.mean = of_weights.data.mean, config.data.std = of_weights.data.std;
}

Graph model_graph(const ModelConfig& model) {
  const auto entry = std::ranges::find(models(), model.name, &ModelEntry::name);
  const std::int64_t size = std::max<std::int64_t>(32, entry == models().end() ? 0 : entry->smallest_image);
  Graph graph({1, size, size, 3});
  build_model(graph, model);
  return graph;
}

std::optional<KnownModel> recognized(const WeightFile& file) {
  const Arrays arrays = by_name(file);
  std::optional<KnownModel> best;
  for (const ModelEntry& entry : models())
    for (const char* stem : {"imagenet", "cifar"}) {
      if (std::string_view(stem) == "cifar" && entry.build != build_resnet) continue;
      ModelConfig model;
      model.name = entry.name, model.stem = stem, model.classes = 1;
      const Graph graph = model_graph(model);
      const auto specs = graph.parameter_specs(), body = specs.first(specs.size() - 2);   // the last layer's weight and bias come last
      if ((best && std::ssize(body) <= best->tensors) || !std::ranges::all_of(body, [&](const ParameterSpec& spec) { return has(arrays, spec.name, spec.file_shape); })) continue;
      const auto bias = arrays.find(specs.back().name);
      best = {entry.name, stem, bias != arrays.end() && bias->second->shape.size() == 1 ? bias->second->shape[0] : 0, std::ssize(body)};
    }
  return best;
}

std::vector<std::string> state_dict_names(const Graph& graph) {
  std::set<std::string> buffers;
  for (const BufferSpec& buffer : graph.buffer_specs()) buffers.insert(buffer.name);
  std::vector<std::string> names;
  for (const ParameterSpec& spec : graph.parameter_specs()) {
    names.push_back(spec.name);
    const std::string module = spec.name.substr(0, spec.name.rfind('.'));
    if (spec.name.ends_with(".bias") && buffers.contains(module + ".running_mean"))
      for (const char* buffer : {".running_mean", ".running_var", ".num_batches_tracked"}) names.push_back(module + buffer);
  }
  return names;
}

void require_network(const WeightFile& file, const ModelConfig& model) {
  const auto known = recognized(file);
  if (!known || known->name == model.name) return;
  const Arrays arrays = by_name(file);
  ModelConfig one_class = model;
  one_class.classes = 1;
  const Graph graph = model_graph(one_class);
  const auto specs = graph.parameter_specs(), body = specs.first(specs.size() - 2);
  const auto agreeing = std::ranges::count_if(body, [&](const ParameterSpec& spec) { return has(arrays, spec.name, spec.file_shape); });
  if (known->tensors >= agreeing)
    fail(file.path, " holds the weights of ", architecture(*known), ", model.name is ", model.name, ". Set model.name = \"", known->name, "\", or name a file of ", model.name, ".");
}

TakenWeights take_weights(const Weights& weights, const ModelConfig& model, const std::vector<std::string>& class_names, const Parameters& layout, TrainingState& state) {
  const WeightFile& file = weights.file;
  Arrays arrays = by_name(file);
  require_network(file, model);
  require_not_v1(file, model.name);
  require_matches("model.weights_except", model.weights_except, layout);

  TakenWeights result;
  std::vector<std::string> skipped, missing;
  std::size_t loaded = 0;
  std::string head;                      // "fc.": the last layer, which comes last in PyTorch's order, if it was taken
  const std::vector<Target> targets = targets_of(layout, state);
  for (const Target& target : targets) {
    const auto found = arrays.find(target.name);
    if (matches_any(model.weights_except, target.name)) {
      skipped.push_back(target.name + ": left out by model.weights_except, starts anew");
    } else if (found == arrays.end()) {
      missing.push_back(target.name);
    } else if (found->second->shape != target.shape) {
      skipped.push_back(text_of(target.name, ": ", shape_text(found->second->shape), " in the file, ", shape_text(target.shape), " here; starts anew"));
    } else {
      take(file, *found->second, target);
      ++loaded;
      if (target.spec && target.spec->ordinal + 1 == std::ssize(layout.slices())) head = target.name.substr(0, target.name.rfind('.') + 1);
    }
    if (found != arrays.end()) arrays.erase(found);
  }
  std::vector<std::string> foreign;
  for (const NamedArray& array : file.arrays) {
    if (array.name.ends_with(count_suffix)) result.batches_tracked = std::max(result.batches_tracked, count_in(array));
    else if (arrays.contains(array.name)) foreign.push_back(array.name);
  }
  require(loaded > 0 || !std::ranges::all_of(targets, [&](const Target& t) { return matches_any(model.weights_except, t.name); }),
          "model.weights_except leaves out every tensor of ", model.name, ": nothing of ", file.path, " would be taken. Leave model.weights empty, or name fewer.");
  require(loaded > 0, file.path, ": none of its ", counted(std::ssize(file.arrays), "tensor"), file.arrays.empty() ? "" : " (\"" + file.arrays[0].name + "\", ...)", " has a name and shape of ", model.name,
          "'s (\"", targets[0].name, "\", ...): it is of another architecture. Check model.name, or name another file.");
  if (!head.empty() && !class_names.empty())
    require_same_classes(file.path, weights.class_names, "the shards", class_names,
                         text_of("Start its last layer anew with model.weights_except=[\"", head, "*\"], or convert the images with the same class folders."));

  std::vector<std::string>& table = result.table;
  table.push_back(text_of("weights   ", file.path, " (", file.form, ")"));
  table.push_back(text_of("          loaded   ", loaded, " of ", targets.size(), " tensors", skipped.empty() && missing.empty() ? ": all of them" : ""));
  for (std::size_t i = 0; i < std::min(skipped.size(), shown_lines); ++i) table.push_back("          skipped  " + skipped[i]);
  if (skipped.size() > shown_lines) table.push_back(text_of("          skipped  ", skipped.size() - shown_lines, " more"));
  if (!head.empty() && !class_names.empty() && weights.class_names.empty())
    table.push_back(text_of("          classes  the file has no names of them: the outputs of ", head.substr(0, head.size() - 1), " are taken for the shards' classes, in order"));
  if (!foreign.empty()) table.push_back("          skipped  not in " + model.name + ": " + listed(foreign));
  if (!missing.empty()) table.push_back("          missing  in the file, start anew: " + listed(missing));
  if (!file.beside.empty()) table.push_back("          ignored  beside the tensors: " + listed(file.beside));
  return result;
}

}  // namespace lockstep
