// sampler: orders of an epoch, made by Fisher and Yates' shuffle on counter-based bits, and the two newest kept.
// Windowed order: blocks of consecutive images are shuffled as wholes and laid end to end; this row is cut into equal windows of at
// least shuffle_window images; each window is shuffled.  So while a window lasts only its blocks are read, and a window that
// spans the set is a full permutation.  On a source in random order a batch's classes are distributed as under a full permutation.
// On one sorted by class, images of a block come in the same window: the variance of a class's count in a batch of B grows by
// about B * block / window (at most; the less, the fewer windows there are).
#include "data/sampler.hpp"

#include <algorithm>
#include <array>
#include <future>
#include <limits>
#include <list>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/random.hpp"

namespace lockstep {
namespace {

using Order = std::vector<std::uint32_t>;   // half of what i64 takes: it is memory speed that a shuffle needs

enum Stream : std::uint32_t { of_images = 0, of_blocks = 1 };

/// Shuffles items in place.  Item i's partner is drawn by number first + i, so that spans of one epoch draw different bits.
void shuffle(std::span<std::uint32_t> items, std::uint64_t seed, std::int64_t epoch, std::size_t first, Stream stream) {
  std::array<std::uint32_t, 64> partner;   // drawn ahead, so that their memory is on its way when they are swapped
  for (std::size_t end = items.size(); end > 1;) {
    const std::size_t count = std::min(partner.size(), end - 1);
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t i = end - 1 - k;
      const Bits4 bits = random_bits(seed, Purpose::permutation, static_cast<std::uint64_t>(epoch), first + i, stream);
      partner[k] = static_cast<std::uint32_t>(below(i + 1, bits[0], bits[1]));
      __builtin_prefetch(&items[partner[k]], 1);
    }
    for (std::size_t k = 0; k < count; ++k) std::swap(items[end - 1 - k], items[partner[k]]);
    end -= count;
  }
}

/// Images a block: long enough for sequential reads, and at least 64 blocks in a window.
std::int64_t block_of(std::int64_t window) { return std::clamp<std::int64_t>(window / 64, 1, 128); }

Order blockwise(std::int64_t images, std::int64_t block, std::uint64_t seed, std::int64_t epoch) {
  Order blocks(static_cast<std::size_t>((images + block - 1) / block));
  std::iota(blocks.begin(), blocks.end(), 0u);
  shuffle(blocks, seed, epoch, 0, of_blocks);
  Order order;
  order.reserve(static_cast<std::size_t>(images));
  for (const std::int64_t b : blocks)
    for (std::int64_t i = b * block; i < std::min(images, (b + 1) * block); ++i) order.push_back(static_cast<std::uint32_t>(i));
  return order;
}

Order make_order(const DataConfig& config, std::int64_t images, std::uint64_t seed, std::int64_t epoch) {
  if (config.shuffle != "window") {
    Order order(static_cast<std::size_t>(images));
    std::iota(order.begin(), order.end(), 0u);
    if (config.shuffle == "full") shuffle(order, seed, epoch, 0, of_images);
    return order;
  }
  Order order = blockwise(images, block_of(config.shuffle_window), seed, epoch);
  const std::int64_t windows = std::max<std::int64_t>(1, images / config.shuffle_window);
  for (std::int64_t w = 0; w < windows; ++w) {
    const Part part = part_of(images, w, windows);
    const auto first = static_cast<std::size_t>(part.begin);
    shuffle(std::span(order).subspan(first, static_cast<std::size_t>(part.size())), seed, epoch, first, of_images);
  }
  return order;
}

}  // namespace

Part part_of(std::int64_t count, std::int64_t index, std::int64_t parts) {
  const std::int64_t floor = count / parts, longer = count % parts;   // the first ones are longer: rank 0 is never the empty one
  const std::int64_t begin = index * floor + std::min(index, longer);
  return {begin, begin + floor + (index < longer ? 1 : 0)};
}

/// The two epochs used last: readers run ahead into the next one while others finish the one before.
struct Sampler::Cache {
  using Future = std::shared_future<std::shared_ptr<const Order>>;
  std::mutex mutex;
  std::list<std::pair<std::int64_t, Future>> epochs;   // the one used last in front

  /// Made by the first thread that asks, outside of the lock; the others wait for it.
  template <class Make>
  std::shared_ptr<const Order> get(std::int64_t epoch, Make make) {
    std::promise<std::shared_ptr<const Order>> promise;
    Future future;
    {
      const std::lock_guard lock(mutex);
      const auto found = std::find_if(epochs.begin(), epochs.end(), [&](const auto& e) { return e.first == epoch; });
      if (found != epochs.end()) {
        epochs.splice(epochs.begin(), epochs, found);
        future = found->second;
      } else {
        epochs.emplace_front(epoch, promise.get_future().share());
        if (epochs.size() > 2) epochs.pop_back();
      }
    }
    if (future.valid()) return future.get();
    try {
      auto order = std::make_shared<const Order>(make());
      promise.set_value(order);
      return order;
    } catch (...) {   // no memory: those who wait hear of it too, the next one tries again
      promise.set_exception(std::current_exception());
      const std::lock_guard lock(mutex);
      epochs.remove_if([&](const auto& e) { return e.first == epoch; });
      throw;
    }
  }
};

Sampler::Sampler(const DataConfig& config, std::int64_t images, std::int64_t global_batch, std::uint64_t seed)
    : config_(config), images_(images), global_batch_(global_batch), seed_(seed), cache_(std::make_shared<Cache>()) {
  require(images > 0, config.path, ": split \"", config.train_split, "\" holds no images to train on.");
  require(images <= std::numeric_limits<std::uint32_t>::max(), config.path, ": a split of ", images,
          " images is more than the 2^32 that the sampler counts. Cut it into several.");
  require(global_batch > 0, "data.global_batch = ", global_batch, " must be at least 1.");
  require(steps_per_epoch() > 0, "data.last_batch = \"drop\" leaves no step: the split has ", images, " images, a step takes ", global_batch,
          ". Lower data.global_batch, or use \"keep\" or \"pad\".");
}

std::int64_t Sampler::steps_per_epoch() const {
  return config_.last_batch == "drop" ? images_ / global_batch_ : (images_ + global_batch_ - 1) / global_batch_;
}

std::int64_t Sampler::global_count(std::int64_t step_in_epoch) const {
  return config_.last_batch == "keep" ? std::min(global_batch_, images_ - step_in_epoch * global_batch_) : global_batch_;
}

std::vector<std::int64_t> Sampler::ids(std::int64_t epoch, std::int64_t step_in_epoch, Part part) const {
  if (epoch < 0 || step_in_epoch < 0 || step_in_epoch >= steps_per_epoch() || part.begin < 0 || part.end > global_count(step_in_epoch))
    fail_with(exit_internal, "sampler: epoch ", epoch, ", step ", step_in_epoch, ", positions ", part.begin, " to ", part.end, ": there is no such part");
  std::vector<std::int64_t> ids;
  if (part.size() <= 0) return ids;
  ids.reserve(static_cast<std::size_t>(part.size()));
  const auto order = cache_->get(epoch, [&] { return make_order(config_, images_, seed_, epoch); });
  const std::int64_t first = step_in_epoch * global_batch_;
  for (std::int64_t p = part.begin; p < part.end; ++p)
    ids.push_back((*order)[static_cast<std::size_t>((first + p) % images_)]);   // beyond the end: last_batch = pad, from the start again
  return ids;
}

std::vector<std::int64_t> Sampler::order(std::int64_t epoch) const {
  const auto order = cache_->get(epoch, [&] { return make_order(config_, images_, seed_, epoch); });
  return {order->begin(), order->end()};
}

}  // namespace lockstep
