#include "train/memory.hpp"

#include <algorithm>

#include "base/formatted.hpp"
#include "base/host_memory.hpp"
#include "data/image_cache.hpp"
#include "data/loader.hpp"

namespace lockstep {
namespace {

constexpr const char* nothing_fits = "Not even one image at once fits. Take a smaller model.name, model.classes or augment.size, or a device with more memory.";

ImageFeed feed_of(const Device& device, const RunPlan& plan, const Dataset& split, std::int64_t images, bool has_pixels) {
  return {.images = images, .bytes_per_image = Loader::bytes_per_image(device, split, plan.config.data.slots, has_pixels)};
}

/// Whether data.cache puts images into the device's memory for certain.
bool is_cached_on_device(const Device& device, const DataConfig& config) {
  return config.cache == "device" || (config.cache == "host" && device.is_host());
}

std::string advice_for_training(const RunPlan& plan, std::int64_t images) {
  if (images == 0) return nothing_fits;
  const DataConfig& data = plan.config.data;
  std::string advice = text_of("At most ", counted(images, "image"), " at once ", images == 1 ? "fits" : "fit", ":");
  if (plan.largest_part > images) {
    const std::int64_t of_rank = part_of(data.global_batch, 0, plan.ranks).size(), parts = (of_rank + images - 1) / images;
    advice += text_of(" lower data.global_batch to ", images * plan.ranks * data.micro_batches);
    if (parts <= 4096) advice += text_of(", or raise data.micro_batches to ", parts);
  }
  if (data.eval_batch > images) advice += text_of(plan.largest_part > images ? ", and" : "", " lower data.eval_batch to ", images);
  return advice + ".";
}

}  // namespace

void limit_memory(Device& device, const DeviceConfig& config, int ranks_of_host) {
  if (config.memory_gib > 0) device.limit_memory(static_cast<std::size_t>(config.memory_gib * (1 << 30)));
  else if (device.is_host()) device.limit_memory(host_memory().total / static_cast<std::size_t>(std::max(ranks_of_host, 1)));
}

std::string mib(std::size_t bytes) {
  return formatted("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string text(const MemoryUse& use) {
  return text_of("weights ", mib(use.parameters), ", gradients ", mib(use.gradients), ", optimizer ", mib(use.optimizer), ", activations ", mib(use.activations), use.repeats ? " (graph.recompute)" : "",
                 use.workspace > 0 ? ", scratch " + mib(use.workspace) : "", use.is_exact ? "" : " at most", use.input > 0 ? ", images " + mib(use.input) : "",
                 use.cache > 0 ? ", image cache " + mib(use.cache) : "");
}

std::size_t MemoryBeside::input_bytes(std::int64_t images) const {
  std::size_t bytes = 0;
  for (const ImageFeed& feed : feeds) bytes += static_cast<std::size_t>(std::min(images, feed.images)) * feed.bytes_per_image;
  return bytes;
}

MemoryBeside beside_training(const Device& device, const RunPlan& plan, const Dataset& train, const Dataset* eval) {
  MemoryBeside beside{.advice = [plan](std::int64_t images) { return advice_for_training(plan, images); }};
  const bool is_cached = is_cached_on_device(device, plan.config.data);
  for (const Dataset* split : {&train, eval}) {
    if (!split) continue;
    beside.feeds.push_back(feed_of(device, plan, *split, split == &train ? plan.largest_part : plan.eval_batch, !is_cached));
    if (is_cached) beside.cache += ImageCache::bytes_of(*split);
  }
  return beside;
}

MemoryBeside beside_evaluation(const Device& device, const RunPlan& plan, const Dataset& eval) {
  return {.feeds = {feed_of(device, plan, eval, plan.eval_batch, true)},
          .advice = [](std::int64_t images) { return images == 0 ? nothing_fits : text_of("At most ", images, " at once fit: set data.eval_batch to ", images, "."); }};
}

std::int64_t largest_that_fits(std::int64_t most, const std::function<bool(std::int64_t)>& fits) {
  std::int64_t does = 0, does_not = most + 1;
  while (does + 1 < does_not) {
    const std::int64_t middle = does + (does_not - does) / 2;
    (fits(middle) ? does : does_not) = middle;
  }
  return does;
}

}  // namespace lockstep
