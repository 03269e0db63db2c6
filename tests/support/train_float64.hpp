// train_float64: a network small enough for plain loops, and its training by SGD in float64: what a run's losses, gradients and weights must be.
// Two 3x3 convolutions with batch norm, the second with an addition; batch norm of pooled values, where a batch of one image has a count of one.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "layers/layers.hpp"
#include "support/backends_conv.hpp"
#include "support/layers_batch_norm.hpp"
#include "tensor/parameters.hpp"

namespace lockstep::test {

inline constexpr std::int64_t small_width = 4, small_size = 4, small_classes = 3;   // channels, pixels a side
inline constexpr double small_epsilon = 0.1;   // of batch norm: two images may be alike, and PyTorch's 1e-5 would make much of what is left of them

/// images [n, 4, 4, 3] -> logits [n, 1, 1, 3].
inline Value build_small_network(Value images) {
  const auto norm = [](Value v, const char* name) { return batch_norm(v, name, {.epsilon = small_epsilon}); };
  const auto conv3x3 = [](Value x, const char* name) { return conv(x, name, {.out = small_width, .kernel = 3, .weight_init = {Init::normal, 0.4}, .bias_init = {}}); };
  Value x = relu(norm(conv3x3(images, "conv1"), "bn1"));
  x = relu(add(norm(conv3x3(x, "conv2"), "bn2"), x));
  x = average_pool(x);
  return linear(add(norm(x, "bn3"), x), "fc", {.out = small_classes, .weight_init = {Init::normal, 0.5}, .bias_init = {Init::normal, 0.1}});
}

struct LabelledImage {
  Doubles pixels;                        // normalized, [4, 4, 3]
  std::int64_t label = 0;
};
using Batch = std::vector<const LabelledImage*>;

/// Sums over images; top1_sure: no other class comes within rounding of the one that decides.
struct LossSums {
  double loss = 0;
  std::int64_t images = 0, top1 = 0;
  bool is_top1_sure = true;
};

class Float64Training {
 public:
  /// layout: of the same network; groups: of ranks that share batch norm statistics.
  Float64Training(const Parameters& layout, std::uint64_t seed, std::size_t groups, double rate, double momentum, double decay)
      : rate_(rate), momentum_(momentum), decay_(decay), layout_(layout) {
    const Parameters::Start start = layout.start_values(seed);
    weights = doubles(start.master), moments_.resize(weights.size()), gradient_.resize(weights.size());
    running.assign(groups, doubles(start.running));
    for (const Slice& s : layout.slices()) slices_[s.spec.name] = {static_cast<std::size_t>(s.offset), static_cast<std::size_t>(s.count)};
    for (std::size_t b = 0; b < layout.buffers().size(); ++b) buffers_[layout.buffers()[b].name] = static_cast<std::size_t>(layout.buffer_offset(b));
  }

  /// parts [micro-batches][groups]: one step.  Sums of its losses.
  LossSums step(const std::vector<std::vector<Batch>>& parts) {
    std::ranges::fill(gradient_, 0);
    LossSums sums;
    for (const std::vector<Batch>& groups : parts)
      for (std::size_t g = 0; g < groups.size(); ++g)
        if (!groups[g].empty()) pass(groups[g], running[g], true, sums);
    double square = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double gradient = gradient_[i] / static_cast<double>(sums.images);
      square += gradient * gradient;
      moments_[i] = momentum_ * moments_[i] + gradient + decay_ * weights[i];
      weights[i] -= rate_ * moments_[i];
    }
    grad_norm = std::sqrt(square);
    return sums;
  }
  /// With the statistics of the first group, as a run evaluates.
  LossSums evaluate(const Batch& images) {
    LossSums sums;
    pass(images, running[0], false, sums);
    return sums;
  }

  Doubles weights;                       // flat, as Parameters stores them
  std::vector<Doubles> running;          // of each group
  double grad_norm = 0;                  // of the last step
  /// Whether a relu's input was zero but for f32's rounding: it may turn the other way there, and all that follows differs.
  bool is_on_edge = false;

 private:
  struct Place { std::size_t offset, count; };
  struct Normed {
    Moments used;
    Doubles x;
  };
  static constexpr double track = 0.1;

  Doubles weight(const std::string& name) const {
    const Place p = slices_.at(name);
    return {weights.begin() + static_cast<std::ptrdiff_t>(p.offset), weights.begin() + static_cast<std::ptrdiff_t>(p.offset + p.count)};
  }
  void add_gradient(const std::string& name, const Doubles& values) {
    for (std::size_t i = 0; i < values.size(); ++i) gradient_[slices_.at(name).offset + i] += values[i];
  }

  /// Training: by the batch, and its running statistics move, with the unbiased variance unless there is one value alone.
  Normed norm(const std::string& name, const Doubles& x, Doubles& statistics, bool is_training) {
    double* const mean = statistics.data() + buffers_.at(name + ".running_mean");
    double* const variance = statistics.data() + buffers_.at(name + ".running_var");
    if (!is_training) return {{Doubles(mean, mean + small_width), Doubles(variance, variance + small_width)}, x};
    Normed normed{moments(x, small_width), x};
    const double rows = static_cast<double>(x.size()) / small_width, unbiased = rows > 1 ? rows / (rows - 1) : 1;
    for (std::size_t k = 0; k < small_width; ++k) {
      mean[k] += track * (normed.used.mean[k] - mean[k]);
      variance[k] += track * (unbiased * normed.used.variance[k] - variance[k]);
    }
    return normed;
  }
  static Doubles normalized(const Normed& n) {
    Doubles y(n.x.size());
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = (n.x[i] - n.used.mean[i % small_width]) / std::sqrt(n.used.variance[i % small_width] + small_epsilon);
    return y;
  }
  Doubles normed_values(const std::string& name, const Normed& n) const {
    const Doubles scale = weight(name + ".weight"), bias = weight(name + ".bias");
    Doubles y = normalized(n);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = y[i] * scale[i % small_width] + bias[i % small_width];
    return y;
  }

  Doubles norm_backward(const std::string& name, const Normed& n, const Doubles& grad) {
    const Doubles scale = weight(name + ".weight"), x_hat = normalized(n);
    Doubles of_scale(small_width), of_bias(small_width), grad_x(grad.size());
    for (std::size_t i = 0; i < grad.size(); ++i) of_scale[i % small_width] += grad[i] * x_hat[i], of_bias[i % small_width] += grad[i];
    const double rows = static_cast<double>(grad.size()) / small_width;
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const std::size_t k = i % small_width;
      grad_x[i] = scale[k] / std::sqrt(n.used.variance[k] + small_epsilon) * (grad[i] - of_bias[k] / rows - x_hat[i] * of_scale[k] / rows);
    }
    add_gradient(name + ".weight", of_scale), add_gradient(name + ".bias", of_bias);
    return grad_x;
  }

  static ConvProblem problem(std::int64_t channels) { return {.h = small_size, .w = small_size, .c = channels, .k = small_width, .r = 3, .s = 3, .pad = 1}; }
  Doubles rectified(Doubles x) {
    for (double& v : x) is_on_edge = is_on_edge || std::abs(v) < 5e-6, v = std::max(v, 0.0);
    return x;
  }
  static Doubles masked(Doubles grad, const Doubles& y) {
    for (std::size_t i = 0; i < grad.size(); ++i) grad[i] = y[i] > 0 ? grad[i] : 0;
    return grad;
  }
  static Doubles sum(Doubles a, const Doubles& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }

  /// Forward; in training the gradient of the summed losses too.
  void pass(const Batch& batch, Doubles& statistics, bool is_training, LossSums& sums) {
    const auto n = static_cast<std::int64_t>(batch.size());
    const std::size_t pixels = small_size * small_size;
    Doubles images;
    for (const LabelledImage* image : batch) images.insert(images.end(), image->pixels.begin(), image->pixels.end());
    const auto convolve = [&](std::int64_t channels, const Doubles& x, const char* name, const Doubles& grad) {
      return reference_conv(problem(channels), n, {x, weight(name), {}, grad.empty() ? Doubles(batch.size() * pixels * small_width) : grad, {}, {}, {}}, false);
    };
    const Normed n1 = norm("bn1", convolve(3, images, "conv1.weight", {}).y, statistics, is_training);
    const Doubles a = rectified(normed_values("bn1", n1));
    const Normed n2 = norm("bn2", convolve(small_width, a, "conv2.weight", {}).y, statistics, is_training);
    const Doubles b = rectified(sum(normed_values("bn2", n2), a));
    Doubles pooled(batch.size() * small_width);
    for (std::size_t i = 0; i < b.size(); ++i) pooled[i / (pixels * small_width) * small_width + i % small_width] += b[i] / static_cast<double>(pixels);
    const Normed n3 = norm("bn3", pooled, statistics, is_training);
    const Doubles features = sum(normed_values("bn3", n3), pooled);

    const Doubles fc = weight("fc.weight"), bias = weight("fc.bias");
    Doubles grad_fc(fc.size()), grad_bias(bias.size()), grad_features(features.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Doubles z = bias;
      for (std::size_t k = 0; k < z.size(); ++k)
        for (std::size_t c = 0; c < small_width; ++c) z[k] += fc[k * small_width + c] * features[i * small_width + c];
      const Doubles terms = softmax_of(z, static_cast<std::size_t>(batch[i]->label), sums);
      for (std::size_t k = 0; k < z.size(); ++k) {
        const double grad = terms[k] - (std::cmp_equal(k, batch[i]->label) ? 1 : 0);
        grad_bias[k] += grad;
        for (std::size_t c = 0; c < small_width; ++c) grad_fc[k * small_width + c] += grad * features[i * small_width + c], grad_features[i * small_width + c] += grad * fc[k * small_width + c];
      }
    }
    if (!is_training) return;
    add_gradient("fc.weight", grad_fc), add_gradient("fc.bias", grad_bias);
    const Doubles grad_pooled = sum(norm_backward("bn3", n3, grad_features), grad_features);
    Doubles grad_b(b.size());
    for (std::size_t i = 0; i < b.size(); ++i) grad_b[i] = grad_pooled[i / (pixels * small_width) * small_width + i % small_width] / static_cast<double>(pixels);
    grad_b = masked(grad_b, b);
    const ConvResult second = convolve(small_width, a, "conv2.weight", norm_backward("bn2", n2, grad_b));
    add_gradient("conv2.weight", second.grad_weight);
    add_gradient("conv1.weight", convolve(3, images, "conv1.weight", norm_backward("bn1", n1, masked(sum(second.grad_x, grad_b), a))).grad_weight);
  }

  static Doubles softmax_of(const Doubles& z, std::size_t label, LossSums& sums) {
    const double largest = *std::ranges::max_element(z);
    double total = 0, rival = -std::numeric_limits<double>::infinity();
    Doubles terms;
    for (std::size_t k = 0; k < z.size(); ++k) {
      terms.push_back(std::exp(z[k] - largest)), total += terms.back();
      if (k != label) rival = std::max(rival, z[k]);
    }
    for (double& term : terms) term /= total;
    sums.loss += std::log(total) + largest - z[label], sums.images += 1, sums.top1 += z[label] > rival;
    sums.is_top1_sure = sums.is_top1_sure && std::abs(z[label] - rival) > 1e-3;
    return terms;
  }

  double rate_, momentum_, decay_;
  const Parameters& layout_;
  Doubles moments_, gradient_;
  std::map<std::string, Place> slices_;
  std::map<std::string, std::size_t> buffers_;
};

}  // namespace lockstep::test
