// zip: archives whose entries are stored, not compressed: the container of torch.save.  With zip64; no encryption, no parts.
// Source: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 to 4.5.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct ZipEntry {
  std::string_view name, bytes;          // in the archive
  std::uint32_t crc = 0;
  bool is_stored = true;                 // else compressed or encrypted
};

bool is_zip(std::span<const char> bytes);
/// The central directory's entries.  Error, naming `path`, unless every entry lies in the archive and none over another.
std::vector<ZipEntry> zip_entries(const std::string& path, std::span<const char> archive);
/// Error where the bytes are not stored as they are, or differ from their checksum.
void require_whole(const std::string& path, const ZipEntry& entry);
/// An archive of these entries, whose bytes begin at multiples of 64; crc is computed here.  Less than 4 GiB.
void write_zip(const std::string& path, std::vector<ZipEntry> entries);

}  // namespace lockstep
