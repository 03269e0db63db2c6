// staged_split: a split opened where a run reads it: in data.path, or on each node's local disk, where it is copied first (data.stage).
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "base/config.hpp"
#include "comm/communicator.hpp"
#include "storage/shards.hpp"
#include "storage/stage.hpp"

namespace lockstep {

struct OpenSplit {
  std::unique_ptr<StagedShards> copy;    // on one rank of each node; null: read from data.path, or another rank's
  std::unique_ptr<Dataset> images;
};
/// Collective: rank 0 looks at the shards, one rank of each node copies them, all open the same.  say: on rank 0.  tick: as it goes on.
OpenSplit open_split(Communicator& comm, const DataConfig& data, const std::string& split, const std::function<void(const std::string&)>& say, const std::function<void()>& tick);
/// What `check` says of data.stage, a line; empty where it is not set.  Error where the shards pass the limit.
std::string staging_plan(const DataConfig& data, const std::vector<std::string>& splits);

}  // namespace lockstep
