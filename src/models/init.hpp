// init: how weights start, by the names that papers and torchvision give it.  The numbers are drawn by tensor/parameters.
#pragma once
#include <cmath>
#include <cstdint>

#include "layers/layers.hpp"

namespace lockstep {

/// He et al. 2015 (arXiv:1502.01852), fan-out: keeps the gradient's variance through convolution and relu.
inline Init kaiming_fan_out(std::int64_t kernel, std::int64_t out) {
  return {Init::normal, std::sqrt(2.0 / static_cast<double>(kernel * kernel * out))};
}

/// What PyTorch gives the weight and bias of a convolution or linear layer that is left alone:
/// kaiming_uniform_(a = sqrt(5)), which comes to [-1, 1) / sqrt(fan_in).
inline Init torch_default(std::int64_t fan_in) { return {Init::uniform, 1 / std::sqrt(static_cast<double>(fan_in))}; }

/// The linear layer as PyTorch starts it.
inline Value default_linear(Value x, const std::string& name, std::int64_t out) {
  const Init init = torch_default(x.shape().image_size());
  return linear(x, name, {.out = out, .weight_init = init, .bias_init = init});
}

/// The convolution with bias as PyTorch starts it; arguments in Conv2d's order.
inline Value default_conv(Value x, const std::string& name, std::int64_t out, std::int64_t kernel, std::int64_t stride, std::int64_t pad) {
  const Init init = torch_default(kernel * kernel * x.channels());
  return conv(x, name, {.out = out, .kernel = kernel, .stride = stride, .pad = pad, .bias = true, .weight_init = init, .bias_init = init});
}

}  // namespace lockstep
