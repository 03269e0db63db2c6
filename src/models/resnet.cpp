// resnet: ResNet-18 to 152 as torchvision builds them (He et al. 2015, arXiv:1512.03385, table 1).
// In: images [n, h, w, 3].  Out: logits [n, 1, 1, classes].
#include <map>

#include "models/init.hpp"
#include "models/models.hpp"

namespace lockstep {
namespace {

Value resnet_conv(Value x, const std::string& name, std::int64_t out, std::int64_t kernel, std::int64_t stride = 1) {
  return conv(x, name, {.out = out, .kernel = kernel, .stride = stride, .weight_init = kaiming_fan_out(kernel, out), .bias_init = {}});
}

/// The shortcut where the block changes the shape (option B): a 1x1 convolution.  `x` otherwise.
Value projection(Value x, std::int64_t out, std::int64_t stride) {
  if (stride == 1 && x.channels() == out) return x;
  return batch_norm(resnet_conv(x, "downsample.0", out, 1, stride), "downsample.1");
}

/// Basic block (fig. 5, left).  x: [n, h, w, c] -> [n, h/stride, w/stride, width].
Value basic_block(Value x, const std::string& name, std::int64_t width, std::int64_t stride, float last_scale) {
  const Scope scope(x.graph(), name);
  Value y = relu(batch_norm(resnet_conv(x, "conv1", width, 3, stride), "bn1"));
  y = batch_norm(resnet_conv(y, "conv2", width, 3), "bn2", {.scale_start = last_scale});
  return relu(add(y, projection(x, width, stride)));
}

/// Bottleneck (fig. 5, right), stride on the 3x3 ("v1.5", as torchvision).  x: [n, h, w, c] -> [n, h/stride, w/stride, 4*width].
Value bottleneck(Value x, const std::string& name, std::int64_t width, std::int64_t stride, float last_scale) {
  const Scope scope(x.graph(), name);
  Value y = relu(batch_norm(resnet_conv(x, "conv1", width, 1), "bn1"));
  y = relu(batch_norm(resnet_conv(y, "conv2", width, 3, stride), "bn2"));
  y = batch_norm(resnet_conv(y, "conv3", 4 * width, 1), "bn3", {.scale_start = last_scale});
  return relu(add(y, projection(x, 4 * width, stride)));
}

struct Plan {
  Value (*block)(Value x, const std::string& name, std::int64_t width, std::int64_t stride, float last_scale);
  int blocks[4];                         // in layer1 .. layer4
};
const Plan& plan_of(const std::string& name) {
  static const std::map<std::string, Plan> plans = {
      {"resnet18", {basic_block, {2, 2, 2, 2}}}, {"resnet34", {basic_block, {3, 4, 6, 3}}},   {"resnet50", {bottleneck, {3, 4, 6, 3}}},
      {"resnet101", {bottleneck, {3, 4, 23, 3}}}, {"resnet152", {bottleneck, {3, 8, 36, 3}}},
  };
  return plans.at(name);
}

}  // namespace

/// stem "imagenet": 7x7 stride 2 and a max pool, the image is 1/4; "cifar": 3x3 stride 1, for images of 32 pixels.
Value build_resnet(Value images, const ModelConfig& config) {
  const Plan& plan = plan_of(config.name);
  const bool is_small = config.stem == "cifar";
  const float last_scale = config.zero_init_residual ? 0.f : 1.f;
  Value x = relu(batch_norm(resnet_conv(images, "conv1", 64, is_small ? 3 : 7, is_small ? 1 : 2), "bn1"));
  if (!is_small) x = max_pool(x, 3, 2, 1);
  for (int layer = 0; layer < 4; ++layer)
    for (int block = 0; block < plan.blocks[layer]; ++block)
      x = plan.block(x, text_of("layer", layer + 1, ".", block), 64ll << layer, layer > 0 && block == 0 ? 2 : 1, last_scale);
  return default_linear(average_pool(x), "fc", config.classes);
}

}  // namespace lockstep
