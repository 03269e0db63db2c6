// sealed_file: a trailer behind an HDF5 file's end, so that a damaged file is known before libhdf5 opens it (it crashes on flipped bytes).
// The trailer: magic, version, file length, the one byte range left out (a shard's pixels; empty in a checkpoint),
// CRC-32C of everything else including these fields.  Written last, verified by plain reads.  h5py opens such a file as usual.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
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

/// A file in memory as its seal was verified, so that nothing of it is read twice; zeros, that take no memory, in the range left out.
class SealedBytes {
 public:
  static constexpr std::int64_t most = 64 << 20;            // that the seal covers and that are kept
  /// Room for a file of so many bytes; none where the system gives none.
  explicit SealedBytes(std::int64_t file_bytes = 0);
  explicit operator bool() const { return bytes_ != nullptr; }
  std::span<char> bytes() const { return {bytes_.get(), bytes_.get_deleter().size}; }

 private:
  struct Unmap {
    std::size_t size;
    void operator()(char* bytes) const;
  };
  std::unique_ptr<char, Unmap> bytes_;
};
/// As verify_seal, and the bytes that were verified, for H5File::open; none where they are too many: then the file is to be read again.
SealedBytes read_sealed(const std::string& path);

/// Moves a finished temporary to its name and fsyncs the folder: after this the file is there, whole, also after a power cut.
void publish(const std::string& temporary, const std::string& path);
/// Bytes free for this user on the file system that holds `folder` (or its nearest existing parent).
std::int64_t free_bytes(const std::string& folder);

}  // namespace lockstep
