#include "train/data_wait.hpp"

#include <cmath>
#include <cstdio>
#include <sstream>

#include "base/error.hpp"

namespace lockstep {

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
  if (wait.waited <= worth_telling * wait.seconds) return "";
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

}  // namespace lockstep
