// alexnet: the one-column AlexNet (Krizhevsky 2014, arXiv:1404.5997) as torchvision builds it; no local response normalization.
// In: images [n, h, w, 3], 63 pixels or more.  Out: logits [n, 1, 1, classes].
#include "models/init.hpp"
#include "models/models.hpp"

namespace lockstep {

/// The numbers in the names are positions in torchvision's Sequential, which counts relu, pool and dropout too.
Value build_alexnet(Value images, const ModelConfig& config) {
  Value x = relu(default_conv(images, "features.0", 64, 11, 4, 2));
  x = max_pool(x, 3, 2);
  x = relu(default_conv(x, "features.3", 192, 5, 1, 2));
  x = max_pool(x, 3, 2);
  x = relu(default_conv(x, "features.6", 384, 3, 1, 1));
  x = relu(default_conv(x, "features.8", 256, 3, 1, 1));
  x = relu(default_conv(x, "features.10", 256, 3, 1, 1));
  x = average_pool(max_pool(x, 3, 2), 6);              // 6 x 6 already for 223 to 254 pixels
  x = relu(default_linear(dropout(x, config.dropout, 0), "classifier.1", 4096));
  x = relu(default_linear(dropout(x, config.dropout, 1), "classifier.4", 4096));
  return default_linear(x, "classifier.6", config.classes);
}

}  // namespace lockstep
