#include "train/data_wait.hpp"

#include <cmath>
#include <cstdio>
#include <locale>
#include <sstream>

#include "base/error.hpp"
#include "data/image_cache.hpp"

namespace lockstep {
namespace {

constexpr double shortest_epoch = 2, shortest_part = 10;   // seconds of training that tell something: the first batch is always waited for

}  // namespace

std::string to_line(const DataWait& wait) { return text_of(wait.waited, " ", wait.seconds, " ", wait.read, " ", wait.who); }

DataWait longest_wait(const std::vector<std::string>& lines) {
  DataWait longest;
  longest.waited = -1;
  for (const std::string& line : lines) {
    DataWait wait;
    std::istringstream words(line);
    words.imbue(std::locale::classic());
    words >> wait.waited >> wait.seconds >> wait.read >> std::ws;
    std::getline(words, wait.who);
    if (wait.waited > longest.waited) longest = wait;
  }
  return longest;
}

std::string data_advice(const DataWait& wait, const DataConfig& config, std::size_t cache_bytes, bool has_room) {
  if (!is_worth_telling(wait)) return "";
  const double busy = wait.read / (wait.seconds * static_cast<double>(config.readers));
  const auto percent = [](double share) { return std::min(100LL, std::llround(100 * share)); };
  // Readers that had nothing to do for a third of the time are fast enough, but not always: more batches ahead even that out.
  std::string advice = text_of("data waits: ", percent(wait.waited / wait.seconds), " % of the time ", wait.who, " waited for images, while its ", counted(config.readers, "reader"), " read ",
                               percent(busy), " % of the time. ", busy < 2.0 / 3 ? text_of("Raise data.slots (", config.slots, " now)") : text_of("Raise data.readers (", config.readers, " now)"));
  if (config.stage.empty()) advice += ", or set data.stage to a folder of the nodes' local disks";
  if (has_room) {
    char gib[32];
    std::snprintf(gib, sizeof gib, "%.1f", static_cast<double>(cache_bytes) / (1 << 30));
    advice += text_of(", or data.cache to \"host\" (", gib, " GiB a rank)");
  }
  return advice;
}

std::string DataWatch::look(Communicator& comm, const Loader& loader, const Dataset& images, const DataConfig& config, bool is_epoch_end) {
  const double now = stopwatch_seconds(), waited = loader.wait_seconds(), read = loader.read_seconds();
  const DataWait own{.seconds = now - start_, .waited = waited - waited_, .read = read - read_, .who = text_of("rank ", comm.rank(), " on ", host_name())};
  const std::vector<std::string> all = comm.gather(to_line(own));
  std::string advice;
  if (const DataWait longest = longest_wait(all); comm.rank() == 0 && !has_advised_ && longest.seconds > (is_epoch_end ? shortest_epoch : shortest_part) && is_worth_telling(longest)) {
    const std::size_t bytes = ImageCache::bytes_of(images);
    advice = data_advice(longest, config, bytes, bytes < ImageCache::room_of_host(comm.local_size()) / 2);
    has_advised_ = true;
  }
  if (!is_epoch_end) return advice;
  has_advised_ = false;
  if (own.seconds > shortest_epoch) start_ = now, waited_ = waited, read_ = read;   // shorter epochs are looked at together
  return advice;
}

}  // namespace lockstep
