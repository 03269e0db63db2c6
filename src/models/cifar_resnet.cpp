// cifar_resnet: ResNet-20, 32, 44, 56 and 110 for images of 32 pixels (He et al. 2015, arXiv:1512.03385, sec. 4.2).
// In: images [n, h, w, 3].  Out: logits [n, 1, 1, classes].  Three stages of (depth - 2) / 6 blocks, 16, 32 and 64 channels.
#include "models/init.hpp"
#include "models/models.hpp"

namespace lockstep {
namespace {

Value conv3x3(Value x, const std::string& name, std::int64_t out, std::int64_t stride = 1) {
  return conv(x, name, {.out = out, .kernel = 3, .stride = stride, .weight_init = kaiming_fan_out(3, out), .bias_init = {}});
}

/// Basic block whose shortcut has no weights (option A).  x: [n, h, w, c] -> [n, h/stride, w/stride, width].
Value block_a(Value x, const std::string& name, std::int64_t width, std::int64_t stride, float last_scale) {
  const Scope scope(x.graph(), name);
  Value y = relu(batch_norm(conv3x3(x, "conv1", width, stride), "bn1"));
  y = batch_norm(conv3x3(y, "conv2", width), "bn2", {.scale_start = last_scale});
  if (stride != 1 || x.channels() != width) x = subsample_pad(x, stride, width);
  return relu(add(y, x));
}

}  // namespace

Value build_cifar_resnet(Value images, const ModelConfig& config) {
  const int depth = std::stoi(config.name.substr(6));   // "resnet20"
  const float last_scale = config.zero_init_residual ? 0.f : 1.f;
  Value x = relu(batch_norm(conv3x3(images, "conv1", 16), "bn1"));
  for (int layer = 0; layer < 3; ++layer)
    for (int block = 0; block < (depth - 2) / 6; ++block)
      x = block_a(x, text_of("layer", layer + 1, ".", block), 16ll << layer, layer > 0 && block == 0 ? 2 : 1, last_scale);
  return default_linear(average_pool(x), "fc", config.classes);
}

}  // namespace lockstep
