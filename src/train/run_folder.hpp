// run_folder: outputs/<run>/, who may work in it, and where a run goes on.  Rank 0 only; the others hear the outcome.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config.hpp"

namespace lockstep {

/// Holds the run's folder for one job at a time, by a lock that dies with its process, where its file system has locks.
class RunLock {
 public:
  /// Error when another live job holds it, with its host and pid or job id.  job: "job 17" or "pid 4711", with the host, for that message.
  RunLock(const std::string& folder, const std::string& holder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  /// For the log: the file system has no locks.  Empty: it has.
  const std::string& warning() const { return warning_; }
  /// What it has written into the file "lock" of the folder.
  const std::string& text() const { return text_; }

 private:
  int descriptor_ = -1;
  std::string warning_, text_;
};

/// What rank 0 found before training; broadcast as text.
struct ResumeDecision {
  std::string checkpoint;                // empty: from the start
  std::vector<std::string> notes;        // which one is taken and why others were refused, for the log
  std::int64_t global_batch = 0;         // the checkpoint's; 0: the input's
  std::string config;                    // the checkpoint's, resolved TOML; empty: from the start
  std::vector<std::string> class_names;  // the checkpoint's; rank 0 alone
};

std::string run_folder(const RunConfig& config);
/// A run by its folder, or by its input file.
struct NamedRun {
  Config config;
  std::string folder;
};
/// Error for a folder without config.toml.
NamedRun find_run(const std::string& input_or_folder, std::span<const std::string> overrides);
/// Removes what killed processes have left half-written, to be called under the lock; files of the last ten minutes may be another command's.
void remove_leftovers(const std::string& folder);
/// By run.resume: auto, never, or a path.  Errors: a used folder with never (names a free one), no such file, none valid.
ResumeDecision decide_resume(const Config& config);
/// Error with key, old and new when a key that changes the result differs from the folder's config.toml; run.epochs may grow.
void require_same_run(const Config& config, const std::string& folder);

}  // namespace lockstep
