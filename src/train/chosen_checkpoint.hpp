// chosen_checkpoint: which of a run's checkpoints is evaluated or predicted with, read beside a training that may remove it meanwhile.
#pragma once
#include <filesystem>
#include <string>

#include "base/config.hpp"
#include "train/checkpoint_folder.hpp"

namespace lockstep {

class ChosenCheckpoint {
 public:
  /// eval.checkpoint, else the best of the run's folder, else its newest.  Error where there is none.
  ChosenCheckpoint(const Config& config, std::string folder) : asked_(config.eval.checkpoint), folder_(std::move(folder)) { choose(); }
  const std::string& path() const { return found_.path; }
  const std::vector<std::string>& refused() const { return found_.refused; }   // newer ones, each with why

  /// Calls read(path).  If the file has gone since it was chosen, the choice is made anew.
  template <class Read>
  auto read(Read&& read) {
    for (int attempt = 1;; ++attempt) {
      try {
        return read(found_.path);
      } catch (const Error&) {
        if (attempt == 10 || !asked_.empty() || std::filesystem::exists(found_.path)) throw;
        choose();
      }
    }
  }

 private:
  void choose();
  std::string asked_, folder_;
  Found found_;
};

/// Fills in what the input leaves open from the run itself: normalization, outputs, batch.
void take_from_run(Config& config, const CheckpointHeader& header);

}  // namespace lockstep
