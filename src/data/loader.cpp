// loader: a ring of batches.  Readers share the work of the oldest unfinished batch, a chunk of images at a time, and plan the next one
// (ids, places, chunks) when there is nothing left to read; next() hands batches out in order.
//
//   free -> planned (its chunks are being read) -> filled -> handed out -> free
//
// CPU: the kernel reads a batch where it was read into; it is free again at the next call of next().
// GPU: next() queues one copy to one of two device buffers on the side stream, so that it runs beside the step before; the pinned
// buffer is free once that copy is known to be done, two calls later (the host is no further ahead anyway).
// With a cache that kernels can read, a batch is its cuts alone, and nothing is read.
#include "data/loader.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "base/error.hpp"

namespace lockstep {

WorkSource training_work(const Sampler& sampler, std::int64_t first_step, int rank, int world, std::int64_t micro_batches) {
  return [=](std::int64_t index, Work& work) {
    const std::int64_t step = first_step + index / micro_batches;
    work.epoch = step / sampler.steps_per_epoch();
    work.step_in_epoch = step % sampler.steps_per_epoch();
    work.part = index % micro_batches;
    work.global_count = sampler.global_count(work.step_in_epoch);
    const Part of_rank = part_of(work.global_count, rank, world), inside = part_of(of_rank.size(), work.part, micro_batches);
    work.positions = {of_rank.begin + inside.begin, of_rank.begin + inside.end};
    work.ids = sampler.ids(work.epoch, work.step_in_epoch, work.positions);
    return true;
  };
}

WorkSource evaluation_work(std::int64_t images, std::int64_t batch, int rank, int world) {
  return [=](std::int64_t index, Work& work) {
    const std::int64_t first = index * world * batch;
    if (first >= images) return false;
    work.step_in_epoch = index;
    work.global_count = std::min(world * batch, images - first);
    work.positions = part_of(work.global_count, rank, world);
    work.ids.resize(static_cast<std::size_t>(work.positions.size()));
    std::iota(work.ids.begin(), work.ids.end(), first + work.positions.begin);
    return true;
  };
}

namespace {

constexpr std::int64_t alignment = 16, chunk_bytes = 1 << 18, chunk_cuts = 128;   // a chunk at most: enough to be worth a lock, little enough to share a batch

std::size_t aligned(std::int64_t bytes) { return static_cast<std::size_t>((bytes + alignment - 1) / alignment * alignment); }

/// One batch of the ring.  Cuts and pixels lie in one allocation, so that one copy brings both.
struct Entry {
  Slot slot;
  Allocation memory;
  Cut* cuts = nullptr;
  std::uint8_t* pixels = nullptr;
  std::size_t pixel_bytes = 0;                // used
  std::vector<std::int64_t> by_place;         // positions in slot.ids, sorted by where their images lie
  std::vector<std::int64_t> chunk_ends;       // in by_place
  std::size_t chunks_taken = 0, chunks_done = 0;
  bool is_filled() const { return chunks_done == chunk_ends.size(); }
};

}  // namespace

struct Loader::State {
  Device& device;
  const Dataset& dataset;
  const Augment& augment;
  const WorkSource work;
  const std::function<void()> tick;
  const std::size_t capacity;                 // images of a slot
  const std::int64_t reader_count;
  const ImageCache* const cache;              // null: none

  std::mutex mutex;                           // guards all below, except what readers write into the entries of chunks that they took
  std::condition_variable for_readers, for_next;
  std::vector<Entry> ring;                    // batch i lies in ring[i % size]
  std::int64_t planned = 0, handed_out = 0, freed = 0;   // batches; freed <= handed_out <= planned <= freed + ring.size()
  std::int64_t end = -1;                      // number of batches, once known
  bool is_planning = false;
  std::exception_ptr error;                   // the first; of batch error_at
  std::int64_t error_at = 0;
  std::atomic<bool> is_stopping = false;

  std::array<Allocation, 2> device_memory;    // GPU only
  Flight copies;
  double wait_seconds = 0, read_seconds = 0;
  std::vector<std::thread> readers;

  State(Device& on, const Dataset& from, const Augment& with, WorkSource source, std::int64_t largest_count, std::int64_t threads, std::int64_t slots, std::function<void()> progress,
        const ImageCache* images)
      : device(on), dataset(from), augment(with), work(std::move(source)), tick(std::move(progress)), capacity(static_cast<std::size_t>(largest_count)), reader_count(threads), cache(images),
        ring(static_cast<std::size_t>(slots + (on.is_host() ? 1 : 2))), copies(on) {   // besides those read ahead: the one in use, or two copies
    const std::size_t cut_bytes = cuts_room(), bytes = cut_bytes + (has_pixels() ? capacity * aligned(dataset.max_image_bytes()) : 0);
    for (Entry& entry : ring) {
      // On a CPU the largest images may never come: pages that no image touched cost nothing.
      entry.memory = device.is_host() ? Allocation(std::malloc(bytes), bytes, [](void* p) { std::free(p); }) : device.allocate_pinned(bytes);
      require(entry.memory.data() || bytes == 0, "this host has no memory left for ", ring.size(), " batches of ", bytes >> 20,
              " MiB to read ahead. Lower data.slots or data.global_batch.");
      entry.cuts = static_cast<Cut*>(entry.memory.data());
      entry.pixels = static_cast<std::uint8_t*>(entry.memory.data()) + cut_bytes;
      entry.slot.pixels = has_pixels() ? entry.pixels : cache->pixels();
      entry.slot.cuts = entry.cuts;
    }
    if (!device.is_host())
      for (Allocation& memory : device_memory) memory = device.allocate(bytes);
  }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      is_stopping = true;
    }
    for_readers.notify_all();
    for (std::thread& reader : readers) reader.join();
  }

  /// Whether a slot holds its images, and not only where they lie in the cache.
  bool has_pixels() const { return !cache || !cache->is_on_device(); }
  std::size_t cuts_room() const { return (capacity * sizeof(Cut) + 255) / 256 * 256; }
  Entry& entry_of(std::int64_t batch) { return ring[static_cast<std::size_t>(batch) % ring.size()]; }

  void plan(Entry& entry, const Work& job);
  void read_chunk(Entry& entry, std::size_t chunk);
  bool plan_next(std::unique_lock<std::mutex>& lock);
  bool read_next(std::unique_lock<std::mutex>& lock);
  void run_reader();
  void keep_error(std::int64_t batch);
  void copy_to_device(Entry& entry, std::int64_t batch);
  void point_at(Slot& slot, const std::uint8_t* memory) const;
  void free_before(std::int64_t batch);
};

/// Gives each image its place in the arena, in the batch's order, and cuts the reads, in the shards' order, into chunks.
void Loader::State::plan(Entry& entry, const Work& job) {
  if (job.ids.size() > capacity) fail_with(exit_internal, "loader: a batch of ", job.ids.size(), " images in a slot for ", capacity);
  Slot& slot = entry.slot;
  slot.count = static_cast<std::int64_t>(job.ids.size());
  slot.global_count = job.global_count, slot.first_position = job.positions.begin;
  slot.epoch = job.epoch, slot.step_in_epoch = job.step_in_epoch, slot.part = job.part;
  slot.ids = job.ids;

  const auto records = dataset.records();
  const auto record_of = [&](std::int64_t position) -> const ImageRecord& { return records[static_cast<std::size_t>(job.ids[static_cast<std::size_t>(position)])]; };
  entry.pixel_bytes = 0;
  for (std::int64_t i = 0; i < slot.count; ++i) {
    const std::int64_t id = job.ids[static_cast<std::size_t>(i)];
    if (id < 0 || id >= dataset.size()) fail_with(exit_internal, "loader: image ", id, " of ", dataset.size());
    entry.cuts[i].offset = has_pixels() ? static_cast<std::int64_t>(entry.pixel_bytes) : cache->offset(id);
    entry.pixel_bytes += has_pixels() ? aligned(record_of(i).bytes()) : 0;
  }
  entry.by_place.resize(job.ids.size());
  std::iota(entry.by_place.begin(), entry.by_place.end(), 0);
  if (!cache)
    std::sort(entry.by_place.begin(), entry.by_place.end(), [&](std::int64_t a, std::int64_t b) {
      return std::pair(record_of(a).shard, record_of(a).offset) < std::pair(record_of(b).shard, record_of(b).offset);
    });
  entry.chunk_ends.clear();
  // All readers may be at one batch: where a read takes long (a network), so many are on their way at once.
  const std::int64_t largest_chunk = has_pixels() ? std::min(chunk_bytes, static_cast<std::int64_t>(entry.pixel_bytes) / reader_count) : chunk_bytes;
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < slot.count; ++i) {
    bytes += has_pixels() ? record_of(entry.by_place[static_cast<std::size_t>(i)]).bytes() : chunk_bytes / chunk_cuts;
    if (bytes >= largest_chunk || i + 1 == slot.count) entry.chunk_ends.push_back(i + 1), bytes = 0;
  }
  entry.chunks_taken = entry.chunks_done = 0;
}

void Loader::State::read_chunk(Entry& entry, std::size_t chunk) {
  for (std::int64_t k = chunk == 0 ? 0 : entry.chunk_ends[chunk - 1]; k < entry.chunk_ends[chunk] && !is_stopping; ++k) {
    const std::int64_t position = entry.by_place[static_cast<std::size_t>(k)], id = entry.slot.ids[static_cast<std::size_t>(position)];
    const ImageRecord& record = dataset.records()[static_cast<std::size_t>(id)];
    Cut& place = entry.cuts[position];
    Cut cut = augment.cut(entry.slot.epoch, id, record.height, record.width);
    cut.offset = place.offset, cut.label = record.label;
    place = cut;
    if (!cache) dataset.read(id, entry.pixels + cut.offset);
    else if (has_pixels()) std::memcpy(entry.pixels + cut.offset, cache->pixels() + cache->offset(id), static_cast<std::size_t>(record.bytes()));
    if (tick) tick();
  }
}

/// Called in a catch block, with the lock held.
void Loader::State::keep_error(std::int64_t batch) {
  if (error && error_at <= batch) return;
  error = std::current_exception();
  error_at = batch;
}

/// Takes a chunk of the oldest batch that has one left.  False when there is none.
bool Loader::State::read_next(std::unique_lock<std::mutex>& lock) {
  std::int64_t batch = handed_out;
  while (batch < planned && entry_of(batch).chunks_taken == entry_of(batch).chunk_ends.size()) ++batch;
  if (batch == planned) return false;
  Entry& entry = entry_of(batch);
  const std::size_t chunk = entry.chunks_taken++;
  const double start = stopwatch_seconds();
  lock.unlock();
  try {
    read_chunk(entry, chunk);
    lock.lock();
  } catch (...) {
    lock.lock();
    keep_error(batch);
  }
  read_seconds += stopwatch_seconds() - start;
  if (++entry.chunks_done == entry.chunk_ends.size()) for_next.notify_one();
  return true;
}

/// Plans one more batch.  False when the ring is full, the work is over, or another thread is at it.
bool Loader::State::plan_next(std::unique_lock<std::mutex>& lock) {
  if (is_planning || end >= 0 || error || planned == freed + static_cast<std::int64_t>(ring.size())) return false;
  is_planning = true;
  const std::int64_t batch = planned;
  lock.unlock();
  Work job;
  bool is_more = false;
  try {
    is_more = work(batch, job);
    if (is_more) plan(entry_of(batch), job);
    lock.lock();
  } catch (...) {
    lock.lock();
    keep_error(batch);
  }
  is_planning = false;
  if (error && error_at == batch) is_more = false;
  else if (!is_more) end = batch;
  if (is_more) ++planned;
  for_readers.notify_all();
  for_next.notify_one();
  return true;
}

void Loader::State::run_reader() {
  std::unique_lock lock(mutex);
  while (!is_stopping)
    if (!read_next(lock) && !plan_next(lock)) for_readers.wait(lock);
}

void Loader::State::free_before(std::int64_t batch) {
  if (batch <= freed) return;
  freed = batch;
  for_readers.notify_all();
}

/// Queues the copy of a filled batch and points its slot to the device.  What is queued on the compute stream after this call waits for it.
void Loader::State::copy_to_device(Entry& entry, std::int64_t batch) {
  auto* to = static_cast<std::uint8_t*>(device_memory[static_cast<std::size_t>(batch % 2)].data());
  const std::size_t bytes = has_pixels() ? cuts_room() + entry.pixel_bytes : static_cast<std::size_t>(entry.slot.count) * sizeof(Cut);
  device.copy_to_device(to, entry.memory.data(), bytes, StreamId::side);
  device.join(StreamId::compute, StreamId::side);
  device.join(StreamId::side, StreamId::compute);   // the next copy overwrites what the step queued before this call reads
  copies.limit(2);
  point_at(entry.slot, to);
}

void Loader::State::point_at(Slot& slot, const std::uint8_t* memory) const {
  slot.cuts = reinterpret_cast<const Cut*>(memory);
  slot.pixels = has_pixels() ? memory + cuts_room() : cache->pixels();
}

Loader::Loader(Device& device, const Dataset& dataset, const Augment& augment, WorkSource work, std::int64_t readers, std::int64_t slots,
               std::int64_t largest_count, std::function<void()> tick, const ImageCache* cache)
    : state_(std::make_unique<State>(device, dataset, augment, std::move(work), largest_count, readers, slots, std::move(tick), cache)) {
  if (readers < 1 || slots < 1) fail_with(exit_internal, "loader: ", readers, " readers, ", slots, " slots");
  for (std::int64_t i = 0; i < readers; ++i) state_->readers.emplace_back([state = state_.get()] { state->run_reader(); });
}

Loader::~Loader() = default;

const Slot* Loader::next() {
  State& s = *state_;
  const double start = stopwatch_seconds();
  std::unique_lock lock(s.mutex);
  const std::int64_t batch = s.handed_out;
  if (s.device.is_host()) s.free_before(batch);
  const auto is_failed = [&] { return s.error && s.error_at == batch; };
  s.for_next.wait(lock, [&] { return is_failed() || s.end == batch || (batch < s.planned && s.entry_of(batch).is_filled()); });
  s.wait_seconds += stopwatch_seconds() - start;
  if (is_failed()) std::rethrow_exception(s.error);
  if (s.end == batch) return nullptr;
  ++s.handed_out;
  Entry& entry = s.entry_of(batch);
  if (s.device.is_host()) return &entry.slot;
  lock.unlock();
  s.copy_to_device(entry, batch);   // the copy before the last one is done now
  lock.lock();
  s.free_before(batch - 1);
  return &entry.slot;
}

std::vector<Slot> Loader::blanks() const {
  std::vector<Slot> slots;
  for (const Allocation& memory : state_->device_memory)
    if (memory.data()) state_->point_at(slots.emplace_back(), static_cast<const std::uint8_t*>(memory.data()));
  return slots;
}

std::size_t Loader::bytes_per_image(const Device& device, const Dataset& dataset, std::int64_t slots, bool has_pixels) {
  const std::int64_t buffers = device.is_host() ? slots + 1 : 2;
  return static_cast<std::size_t>(buffers) * (sizeof(Cut) + (has_pixels ? aligned(dataset.max_image_bytes()) : 0));
}

double Loader::wait_seconds() const { return state_->wait_seconds; }
double Loader::read_seconds() const {
  const std::lock_guard lock(state_->mutex);
  return state_->read_seconds;
}

}  // namespace lockstep
