#include "train/predict/predictor.hpp"

#include <algorithm>

namespace lockstep {

Predictor::Predictor(Device& device, Network& network, const RunPlan& plan, const ShardHeader& stored)
    : device_(device), executor_(network.executor()),
      augment_(plan.config.augment, false, static_cast<std::uint64_t>(plan.config.run.seed), stored.height, stored.width, plan.config.data.mean, plan.config.data.std),
      feed_(device), cuts_(device.allocate(static_cast<std::size_t>(plan.eval_batch) * sizeof(Cut))) {}

std::vector<float> Predictor::logits(std::span<const DecodedImage> images) {
  std::vector<Cut> cuts;
  std::vector<std::uint8_t> pixels;
  for (const DecodedImage& image : images) {
    cuts.push_back(augment_.cut(0, 0, image.height, image.width));
    cuts.back().offset = std::ssize(pixels);
    pixels.insert(pixels.end(), image.pixels.begin(), image.pixels.end());
    pixels.resize((pixels.size() + 15) / 16 * 16);
  }
  if (pixels_.bytes() < pixels.size()) pixels_ = {}, pixels_ = device_.allocate(pixels.size());
  device_.copy_to_device(cuts_.data(), cuts.data(), cuts.size() * sizeof(Cut));
  device_.copy_to_device(pixels_.data(), pixels.data(), pixels.size());
  const auto count = std::ssize(images);
  feed_.publish({.local_count = static_cast<std::int32_t>(count)}, executor_.step_state());
  augment_.enqueue(device_, static_cast<const std::uint8_t*>(pixels_.data()), static_cast<const Cut*>(cuts_.data()), count, executor_.input(), executor_.labels(),
                   {.channels = executor_.input().shape.c});
  executor_.enqueue_evaluation(count);
  const Tensor logits = executor_.logits(count);
  std::vector<float> values(static_cast<std::size_t>(logits.size()));
  dispatch(logits.dtype, [&]<class T>(T) {
    std::vector<T> stored(values.size());
    device_.copy_to_host(stored.data(), logits.data, logits.bytes());
    std::ranges::transform(stored, values.begin(), [](T v) { return static_cast<float>(v); });
  });
  return values;
}

}  // namespace lockstep
