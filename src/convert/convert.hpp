// convert: drives a source into shards.
#pragma once
#include <cstdint>
#include <string>

#include "convert/source.hpp"

namespace lockstep {

struct ConvertOptions {
  std::string output;
  std::int64_t shards = 0;                    // a split; 0: about 1 GiB each
  std::int64_t threads = 0;                   // 0: one a core
  std::int64_t seed = 0;
  bool strict = false, force = false, overwrite = false;
};

/// Writes all splits of the source, or says that this was already done.  The bytes of the shards do not depend on the threads.
/// Nothing gets a shard's final name before every image of every split was read.
void convert(Source& source, const std::string& input, const ConvertOptions& options);

}  // namespace lockstep
