// lenet: the network of PyTorch's CIFAR-10 tutorials ("Net", "ToyModel"), after LeNet-5 (LeCun et al. 1998), with relu and max pooling.
// In: images [n, h, w, 3], 32 pixels there, 16 or more here.  Out: logits [n, 1, 1, classes].
#include "models/init.hpp"
#include "models/models.hpp"

namespace lockstep {

Value build_lenet(Value images, const ModelConfig& config) {
  Value x = max_pool(relu(default_conv(images, "conv1", 6, 5, 1, 0)), 2, 2);
  x = max_pool(relu(default_conv(x, "conv2", 16, 5, 1, 0)), 2, 2);
  x = relu(default_linear(x, "fc1", 120));             // from 16 x 5 x 5 = 400
  x = relu(default_linear(x, "fc2", 84));
  return default_linear(x, "fc3", config.classes);
}

}  // namespace lockstep
