// agreement: what all ranks must see alike before they work together: the input and the shards.  Ranks that differ would wait for each
// other for ever, or train on images that no one asked for.  Collective.
#pragma once
#include <span>
#include <string>

#include "base/config.hpp"
#include "comm/communicator.hpp"
#include "storage/shards.hpp"

namespace lockstep {

/// Each rank has read its own file and overrides.  Error on all ranks where two have it otherwise, naming the first key that differs.
void require_same_config(Communicator& comm, const Config& config);
/// Error on all ranks where two see other images, labels or classes below that path, also of equal number.  eval: may be null.
void require_same_shards(Communicator& comm, const Dataset& train, const Dataset* eval = nullptr);
/// A warning for rank 0 where some ranks do not see `file` with the content that rank 0 has written; empty where all do, and on other ranks.
/// content: of rank 0, which does not open the file: to close it would give up its lock.
std::string warning_of_own_disk(Communicator& comm, const std::string& folder, const std::string& file, const std::string& content);

}  // namespace lockstep
