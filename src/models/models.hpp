// models: name -> builder.  A model is one line here and one family a file.  Names of parameters are torchvision's.
#pragma once
#include <span>
#include <string>

#include "base/config.hpp"
#include "graph/graph.hpp"
#include "layers/layers.hpp"

namespace lockstep {

/// Appends the network up to its logits.  config.classes is > 0 here.
/// Errors: an unknown name, stem = "cifar" where there is no such stem, or images smaller than the model can take: exit 2.
Value build_model(Graph& graph, const ModelConfig& config);

struct ModelEntry {
  const char* name;
  Value (*build)(Value images, const ModelConfig& config);
  std::int64_t smallest_image;           // height and width below which the network has no output
};
std::span<const ModelEntry> models();

// One family a file; each is named in models.cpp's table.
Value build_cifar_resnet(Value images, const ModelConfig& config);
Value build_resnet(Value images, const ModelConfig& config);
Value build_alexnet(Value images, const ModelConfig& config);
Value build_lenet(Value images, const ModelConfig& config);

}  // namespace lockstep
