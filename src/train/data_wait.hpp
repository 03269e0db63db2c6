// data_wait: whether a run waits for its images, and which setting would help; said at most once an epoch.
#pragma once
#include <cstddef>
#include <string>

#include "base/config.hpp"
#include "comm/communicator.hpp"
#include "data/loader.hpp"
#include "tensor/device.hpp"

namespace lockstep {

/// Of the rank that waited most.
struct DataWait {
  double seconds = 0;                    // of training
  double waited = 0;                     // of these, for images
  double read = 0;                       // that its readers read, summed over them
  std::string who;                       // the rank and its host
};
/// As one line for gather(), and the one that waited most of such lines.
std::string to_line(const DataWait& wait);
DataWait longest_wait(const std::vector<std::string>& lines);

inline bool is_worth_telling(const DataWait& wait) { return wait.waited > 0.05 * wait.seconds; }

/// A line for the log; empty when the waits are not worth one.  cache_bytes: what the images would take in a rank's memory; has_room: and it has that.
std::string data_advice(const DataWait& wait, const DataConfig& config, std::size_t cache_bytes, bool has_room);

class DataWatch {
 public:
  void begin() { start_ = stopwatch_seconds(); }
  void leave_out(double seconds) { start_ += seconds; }    // what was no training
  /// Collective.  The advice, on rank 0; empty when there is none, or it was given in this epoch.
  std::string look(Communicator& comm, const Loader& loader, const Dataset& images, const DataConfig& config, bool is_epoch_end);

 private:
  double start_ = 0, waited_ = 0, read_ = 0;               // since when, and what loader said then
  bool has_advised_ = false;
};

}  // namespace lockstep
