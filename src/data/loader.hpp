// loader: reader threads -> slots (a byte arena and a Cut an image) -> device.  Back-pressure by slot count; a thread's exception reaches main.
// In: a data set, the order of samples, the cuts.  Out: one filled slot a micro-batch, in order.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "data/augment.hpp"
#include "data/image_cache.hpp"
#include "data/sampler.hpp"
#include "storage/shards.hpp"
#include "tensor/device.hpp"

namespace lockstep {

/// One micro-batch, ready for the device.  Valid until the next call of next(); the device memory that it names, for all work that was
/// queued on the compute stream before that call.
struct Slot {
  const std::uint8_t* pixels = nullptr;  // device memory (on a CPU: host)
  const Cut* cuts = nullptr;             // device memory
  std::int64_t count = 0;                // images of this rank in this part; may be 0
  std::int64_t global_count = 0;         // images of the whole step
  std::int64_t first_position = 0;       // of this rank's part in the global batch
  std::int64_t epoch = 0, step_in_epoch = 0, part = 0;
  std::vector<std::int64_t> ids;
};

/// Which micro-batches, in order; pure.  Training: epochs without end from a given step.  Evaluation: each sample once.
struct Work {
  std::int64_t epoch = 0, step_in_epoch = 0, part = 0, global_count = 0;
  Part positions;                        // in the global batch
  std::vector<std::int64_t> ids;
};
using WorkSource = std::function<bool(std::int64_t index, Work& work)>;  // false: the end.  Called by reader threads, pure in index

/// rank's micro-batches from `first_step` (counted over all epochs) on; part 0 .. micro_batches - 1 of each step.
WorkSource training_work(const Sampler& sampler, std::int64_t first_step, int rank, int world, std::int64_t micro_batches);
/// Samples [0, images) cut into steps of world * batch; every rank gets equally many calls, the last may be empty.
WorkSource evaluation_work(std::int64_t images, std::int64_t batch, int rank, int world);

class Loader {
 public:
  /// readers: threads.  slots: batches read ahead of the one in use.  largest_count: images of the largest batch of `work`.
  /// tick: called by the readers after each image read (the watchdog's progress); may be empty.
  /// cache: of the same data set, which it outlives; null: images are read from the shards.
  Loader(Device& device, const Dataset& dataset, const Augment& augment, WorkSource work, std::int64_t readers, std::int64_t slots,
         std::int64_t largest_count, std::function<void()> tick, const ImageCache* cache = nullptr);
  ~Loader();                             // stops and joins its threads; at most one image a thread is waited for
  /// The next slot, queued for copying; null at the end.  Rethrows a reader's exception once all batches before it were handed out.
  const Slot* next();
  /// The device memory of slots that next() hands out, in turns: two on a GPU, whose images are of no size until then; none on a CPU, where
  /// each slot has its own.  For recordings, which are made of addresses.
  std::vector<Slot> blanks() const;
  /// Memory that a loader takes for each image of its largest batch: of the GPU; on a CPU, where pages that no image fills cost nothing, of the
  /// host.  has_pixels: no cache that kernels can read.
  static std::size_t bytes_per_image(const Device& device, const Dataset& dataset, std::int64_t slots, bool has_pixels);
  double wait_seconds() const;           // that next() has waited in all
  double read_seconds() const;           // that the readers have read in all, summed over them

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
