// in_order: work on all cores, results in order, memory bounded.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace lockstep {

/// Calls make(i) for i in [0, count) on `threads` threads, and take(i, result) on the calling thread with i ascending.
/// At most 4 results a thread exist at once, so that one slow image does not stop the others.
/// The first exception, of either, ends all threads and is thrown here.
template <class Make, class Take>
void in_order(std::int64_t count, int threads, const Make& make, const Take& take) {
  using Result = decltype(make(std::int64_t{0}));
  std::vector<std::optional<Result>> slots(4 * static_cast<std::size_t>(threads));
  const auto window = static_cast<std::int64_t>(slots.size());
  std::mutex mutex;
  std::condition_variable slot_is_free, result_is_there;
  std::int64_t begun = 0, taken = 0;
  std::exception_ptr failure;

  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (true) {
      slot_is_free.wait(lock, [&] { return failure || begun == count || begun < taken + window; });
      if (failure || begun == count) return;
      const std::int64_t i = begun++;
      lock.unlock();
      std::optional<Result> result;
      std::exception_ptr thrown;
      try {
        result = make(i);
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      if (thrown && !failure) failure = thrown;
      slots[static_cast<std::size_t>(i % window)] = std::move(result);
      if (i == taken || failure) result_is_there.notify_one();
      if (failure) slot_is_free.notify_all();
    }
  };
  std::vector<std::jthread> pool;
  try {
    for (int t = 0; t < threads; ++t) pool.emplace_back(work);
  } catch (...) {                                                   // no more threads to be had: those that wait must end
    const std::lock_guard lock(mutex);
    failure = std::current_exception();
  }

  std::unique_lock lock(mutex);
  while (taken < count && !failure) {
    auto& slot = slots[static_cast<std::size_t>(taken % window)];
    result_is_there.wait(lock, [&] { return failure || slot; });
    if (failure) break;
    Result result = std::move(*slot);
    slot.reset();
    const std::int64_t i = taken++;
    lock.unlock();
    slot_is_free.notify_one();
    try {
      take(i, std::move(result));
    } catch (...) {
      lock.lock();
      failure = std::current_exception();
      break;
    }
    lock.lock();
  }
  slot_is_free.notify_all();
  lock.unlock();
  pool.clear();                                                     // joins
  if (failure) std::rethrow_exception(failure);
}

}  // namespace lockstep
