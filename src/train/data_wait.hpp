// data_wait: whether a run waits for its images, and which setting would help.  Pure.
#pragma once
#include <cstddef>
#include <string>

#include "base/config.hpp"

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

inline constexpr double worth_telling = 0.05;            // share of the time

/// A line for the log; empty when the waits are not worth one.  cache_bytes: what the images would take in a rank's memory; has_room: and it has that.
std::string data_advice(const DataWait& wait, const DataConfig& config, std::size_t cache_bytes, bool has_room);

}  // namespace lockstep
