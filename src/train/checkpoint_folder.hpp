// checkpoint_folder: which checkpoints a run has, which one is taken, and which are kept.  Rank 0 only.
// Files are step-NNNNNNNN.h5; the newest whole one is the run's state.  Writes happen on a thread of their own.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "train/checkpoint.hpp"

namespace lockstep {

std::string checkpoint_name(std::int64_t step);
/// Paths in a folder, newest first; half-written ones are not among them.
std::vector<std::string> checkpoints_in(const std::string& folder);
/// The step in a checkpoint's file name; -1 when it is none.
std::int64_t step_of(const std::string& path);

struct Found {
  std::string path;                      // empty: none
  std::vector<std::string> refused;      // newer ones, each with why
};
Found newest_valid(const std::string& folder);
/// The one with the best evaluation if it is still there, else the newest.
Found best_or_newest(const std::string& folder);

class CheckpointWriter {
 public:
  /// say: where a failed write is told, once.  tick: progress for the watchdog.
  CheckpointWriter(std::string folder, const CheckpointConfig& config, std::int64_t steps_per_epoch, std::function<void(const std::string&)> say,
                   std::function<void()> tick);
  ~CheckpointWriter();                   // waits for the write in progress
  /// Hands a state over; waits only for the write before it.  layout must outlive the writer.
  void write(CheckpointHeader header, TrainingState state, const Parameters& layout);
  /// Waits until nothing is being written.  Throws what the last write threw, if it failed.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
