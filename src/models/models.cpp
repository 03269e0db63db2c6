#include "models/models.hpp"

#include <algorithm>
#include <vector>

namespace lockstep {

std::span<const ModelEntry> models() {
  static constexpr ModelEntry table[] = {
      {"resnet20", build_cifar_resnet, 1},  {"resnet32", build_cifar_resnet, 1}, {"resnet44", build_cifar_resnet, 1},
      {"resnet56", build_cifar_resnet, 1},  {"resnet110", build_cifar_resnet, 1},
      {"resnet18", build_resnet, 1},        {"resnet34", build_resnet, 1},       {"resnet50", build_resnet, 1},
      {"resnet101", build_resnet, 1},       {"resnet152", build_resnet, 1},
      {"alexnet", build_alexnet, 63},       // 63 -> 15 -> 7 -> 3 -> 1
      {"lenet", build_lenet, 16},           // 16 -> 12 -> 6 -> 2 -> 1
  };
  return table;
}

Value build_model(Graph& graph, const ModelConfig& config) {
  const auto entry = std::ranges::find(models(), config.name, &ModelEntry::name);
  if (entry == models().end()) {
    std::vector<std::string> names;
    std::string listed;
    for (const ModelEntry& model : models()) names.emplace_back(model.name), listed += (listed.empty() ? "" : ", ") + names.back();
    fail("model.name = \"", config.name, "\" is no network of lockstep's.", did_you_mean(config.name, names), " It has: ", listed, ".");
  }
  const Shape& image = graph.input().shape();
  require(image.h >= entry->smallest_image && image.w >= entry->smallest_image, "model.name = \"", config.name, "\" has no output for images of ",
          image.h, " x ", image.w, " pixels; it needs at least ", entry->smallest_image, " x ", entry->smallest_image,
          ". Raise augment.size (with augment.train and augment.eval = \"resize\"), or choose another model.name.");
  return entry->build(graph.input(), config);
}

}  // namespace lockstep
