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

/// Error where the checkpoint was trained on other classes than those of `shards`.  An imported one knows no names: then as many outputs as classes will do, or as
/// model.classes (`asked`; 0: not set) says, and the line that is returned says so.  Empty where the names are known and equal.
std::string require_classes(const std::string& path, const CheckpointHeader& header, std::int64_t asked, const std::string& shards, const std::vector<std::string>& of_shards);
/// Fills in what the input leaves open from the run itself: normalization, outputs, batch.
void take_from_run(Config& config, const CheckpointHeader& header);

}  // namespace lockstep
