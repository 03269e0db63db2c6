// `lockstep export CHECKPOINT WEIGHTS`: a checkpoint's weights with torchvision's names, as .safetensors or as PyTorch's .pth.
#include <algorithm>
#include <iostream>
#include <map>

#include "storage/safetensors.hpp"
#include "storage/torch_file.hpp"
#include "train/commands/commands.hpp"
#include "train/weights.hpp"

namespace lockstep {

int run_export(const Invocation& invocation) {
  const std::string &from = invocation.arguments.at(0), &to = invocation.arguments.at(1);
  const bool is_torch = to.ends_with(".pth") || to.ends_with(".pt");
  require(is_torch || to.ends_with(".safetensors"), to, ": the form is told by the name's end, .safetensors, .pth or .pt. Give the checkpoint first, then the file to make.");
  require(invocation.overrides.empty(), "lockstep export takes no overrides: the checkpoint says what it holds.");
  CheckpointHeader header;
  WeightFile file = read_checkpoint_weights(from, header);
  std::map<std::string, std::size_t> place;   // in PyTorch's order
  for (const std::string& name : state_dict_names(model_graph(parse_config(header.config, "the configuration in " + from).model))) place.emplace(name, place.size());
  for (const NamedArray& array : file.arrays)
    require(place.contains(array.name), from, " holds ", array.name, ", which no ", header.model, " has. Use the program that wrote it.");
  std::ranges::sort(file.arrays, {}, [&](const NamedArray& array) { return place.at(array.name); });
  if (is_torch) write_torch_file(to, file.arrays);
  else write_safetensors(to, file.arrays, {{"format", "pt"}, {"arch", header.model}});
  std::cout << "written   " << to << ": " << header.model << ", " << counted(header.classes, "output") << ", " << counted(std::ssize(file.arrays), "tensor") << "\n";
  return exit_done;
}

}  // namespace lockstep
