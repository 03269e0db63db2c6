// stage: shards copied to a node's local disk, for its ranks and for later jobs.
// In: the manifest of a split (names, sizes, times and seals of its shards), a folder of the local disk.  Out: a folder that Dataset opens.
// <folder>/<data set>-<split>-<fingerprint>/ has the shards under their names, and `manifest`; <the same>.lock is held (flock, which ends with its
// process) alone by who copies or removes, and shared by who reads.  A shard is copied aside, verified image by image, and renamed: what a killed
// job has left is finished by the next.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "storage/stage_manifest.hpp"

namespace lockstep {

class FileLock;

struct StageSetting {
  std::string folder, host;              // host: for messages
  std::int64_t limit_bytes = 0;          // that all data sets of the folder may take; 0: what the disk holds
  int threads = 4;
  std::function<void()> tick = [] {};    // called again and again, from any thread, while it goes on or waits for another job
};

/// Error where the shards take more than the limit.
void require_stageable(const StageManifest& manifest, const StageSetting& setting);

/// A split on the local disk, kept from being removed while this lives.
class StagedShards {
 public:
  /// Copies what is missing; waits while another process does.  Data sets unused for the longest time, and now, are removed where the limit or the disk
  /// asks for it.  Errors name folder, host and what to do: no room, not writable, a damaged or changed source.
  StagedShards(const StageManifest& manifest, const StageSetting& setting, const std::function<void(const std::string&)>& say);
  ~StagedShards();
  StagedShards(const StagedShards&) = delete;
  StagedShards& operator=(const StagedShards&) = delete;
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  std::unique_ptr<FileLock> lock_;
};

}  // namespace lockstep
