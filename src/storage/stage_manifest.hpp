// stage_manifest: what a split's shards are, so that a copy of them is known to be whole, and those of a changed source are told apart.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// What a split's shards are, where they come from.  Equal shards have equal seals, which cover the checksum of every image.
struct StageManifest {
  struct Shard {
    std::string name;
    std::int64_t bytes = 0, modified = 0;  // modified: nanoseconds since 1970
    std::string seal;                      // the trailer, as hexadecimal digits
    bool operator==(const Shard&) const = default;
  };
  std::string source, split;             // the folder that they are copied from
  std::vector<Shard> shards;
  std::int64_t bytes() const;
  std::string folder_name() const;       // data set, split and a fingerprint of the shards
  std::string text() const;
};
/// Reads the end of each shard, with so many threads.  Errors as of Dataset: no such folder, a shard missing or without its seal.
StageManifest read_manifest(const std::string& source, const std::string& split, int threads);
/// Whether a text begins as one.
bool is_manifest(const std::string& text);
/// text() back.  Error for anything else.
StageManifest parse_manifest(const std::string& text);

/// A file as it lies there; nothing where there is none.
std::optional<StageManifest::Shard> shard_at(const std::string& folder, const std::string& name);
/// Whether a copy is what the manifest says, by its size and seal; its time is its own.
bool is_copied(const std::string& folder, const StageManifest::Shard& shard);
/// Bytes of the manifest's shards that lie below a stage's folder already, whole.
std::int64_t staged_bytes(const StageManifest& manifest, const std::string& stage);

}  // namespace lockstep
