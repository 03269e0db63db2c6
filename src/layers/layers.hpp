// layers: the whole vocabulary that models are written in.  Every word appends one node and returns its value.
#pragma once
#include <cstdint>
#include <string>

#include "graph/graph.hpp"

namespace lockstep {

struct ConvOptions {
  std::int64_t out = 0, kernel = 3, stride = 1, pad = -1;   // pad -1: (kernel - 1) / 2
  bool bias = false;
  Init weight_init, bias_init;                              // constant 0 is not a useful weight: models say what they want
};
/// x [n, h, w, c] -> [n, p, q, out].  Parameters: weight [out, kernel, kernel, c], bias [out].
Value conv(Value x, const std::string& name, const ConvOptions& options);

struct LinearOptions {
  std::int64_t out = 0;
  bool bias = true;
  Init weight_init, bias_init;
};
/// x [n, 1, 1, c] or, flattened in torchvision's (c, h, w) order in files, [n, h, w, c] -> [n, 1, 1, out].
Value linear(Value x, const std::string& name, const LinearOptions& options);

struct BatchNormOptions {
  double momentum = 0.1, epsilon = 1e-5;
  float scale_start = 1;                                    // zero_init_residual: 0
};
/// Normalizes over n, h, w; statistics over the exchange's ranks if the run has one.  Parameters weight, bias [c]; buffers running_mean, running_var.
Value batch_norm(Value x, const std::string& name, const BatchNormOptions& options = {});

Value relu(Value x);
Value add(Value a, Value b);                                // equal shapes
/// Zeroes with probability p and scales by 1 / (1 - p) in training; identity in evaluation.  `index`: which dropout of the net, for its numbers.
Value dropout(Value x, double p, int index);
/// Option A shortcut (He et al. 2015, sec. 4.2): every stride-th pixel; channels padded with zeros to `channels`, half before, half after
/// (odd remainder after).
Value subsample_pad(Value x, std::int64_t stride, std::int64_t channels);
Value max_pool(Value x, std::int64_t kernel, std::int64_t stride, std::int64_t pad = 0);   // windows inside the padded image (floor)
/// Mean over bins of an out x out grid, PyTorch's AdaptiveAvgPool2d; out = 1: global average.
Value average_pool(Value x, std::int64_t out = 1);
/// Loss of logits [n, 1, 1, classes] against the executor's labels; adds to MetricSums; grad = (softmax - target) * loss_scale / global count.
/// target: (1 - smoothing) at the label plus smoothing / classes everywhere (PyTorch's label_smoothing).  Ties in top-k: the lower class wins.
Value cross_entropy(Value logits, double label_smoothing);

}  // namespace lockstep
