// sealed_file: a trailer behind an HDF5 file's end, so that a damaged file is known before libhdf5 opens it (it crashes on flipped bytes).
// The trailer: magic, version, file length, the one byte range left out (a shard's pixels; empty in a checkpoint),
// CRC-32C of everything else including these fields.  Written last, verified by plain reads.  h5py opens such a file as usual.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

/// CRC-32C (Castagnoli), continued from `crc`; by the CPU's instruction where it has one.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc = 0);
/// The same where the CPU has no such instruction; declared so that a test can compare both.
std::uint32_t crc32c_by_table(const void* data, std::size_t bytes, std::uint32_t crc = 0);

inline constexpr std::int64_t seal_bytes = 48;            // of the trailer
inline constexpr std::string_view seal_magic = "LOCKSEAL"; // that it begins with

struct ByteRange {
  std::int64_t begin = 0, end = 0;
};

/// Appends the trailer to a closed file and fsyncs it.  `tick` is called for each block read.
void seal(const std::string& path, ByteRange left_out = {}, const std::function<void()>& tick = {});
/// Empty when the file is whole; else one line that says what is wrong ("is truncated: ...", "differs from its checksum", "has no seal").
std::string damage_of(const std::string& path, const std::function<void()>& tick = {});
/// Throws an Error that names the file when damage_of finds any.
void verify_seal(const std::string& path, const std::function<void()>& tick = {});

/// Moves a finished temporary to its name and fsyncs the folder: after this the file is there, whole, also after a power cut.
void publish(const std::string& temporary, const std::string& path);
/// Bytes free for this user on the file system that holds `folder` (or its nearest existing parent).
std::int64_t free_bytes(const std::string& folder);

}  // namespace lockstep
