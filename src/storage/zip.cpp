#include "storage/zip.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>

#include "base/error.hpp"
#include "storage/aside_file.hpp"
#include "storage/named_array.hpp"

namespace lockstep {
namespace {

constexpr std::uint32_t local_mark = 0x04034b50, entry_mark = 0x02014b50, end_mark = 0x06054b50, wide_end_mark = 0x06064b50, wide_place_mark = 0x07064b50;
constexpr std::size_t local_bytes = 30, entry_bytes = 46, end_bytes = 22, wide_end_bytes = 56, wide_place_bytes = 20, alignment = 64;
constexpr std::uint64_t in_wide = 0xffffffff;   // a 32-bit field that says: look into the zip64 field

/// Reads numbers at offsets; each must lie inside.
struct Reader {
  const std::string& path;
  std::span<const char> bytes;

  void need(std::uint64_t offset, std::uint64_t count) const {
    require(offset <= bytes.size() && count <= bytes.size() - offset, path, ": the zip archive is cut off or damaged: it speaks of byte ", offset, " + ", count, " of ", bytes.size(),
            ". Download or save it again.");
  }
  template <class T>
  std::uint64_t at(std::uint64_t offset) const {
    need(offset, sizeof(T));
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
  }
  std::uint64_t u16(std::uint64_t offset) const { return at<std::uint16_t>(offset); }
  std::uint64_t u32(std::uint64_t offset) const { return at<std::uint32_t>(offset); }
  std::uint64_t u64(std::uint64_t offset) const { return at<std::uint64_t>(offset); }
  std::string_view text(std::uint64_t offset, std::uint64_t count) const {
    need(offset, count);
    return {bytes.data() + offset, static_cast<std::size_t>(count)};
  }
  [[noreturn]] void damaged(const char* what) const { fail(path, ": the zip archive is damaged: ", what, ". Download or save it again."); }
};

struct Directory {
  std::uint64_t offset = 0, bytes = 0, entries = 0;
};

/// The end record stands last, before a comment of up to 64 KiB.
std::uint64_t find_end(const Reader& r) {
  for (std::uint64_t comment = 0; comment <= 0xffff && end_bytes + comment <= r.bytes.size(); ++comment) {
    const std::uint64_t offset = r.bytes.size() - end_bytes - comment;
    if (r.u32(offset) == end_mark && r.u16(offset + 20) == comment) return offset;
  }
  fail(r.path, " is a zip archive that is cut off: it has no central directory. Download or save it again.");
}

Directory directory_of(const Reader& r) {
  const std::uint64_t end = find_end(r);
  Directory d{.offset = r.u32(end + 16), .bytes = r.u32(end + 12), .entries = r.u16(end + 10)};
  if (end >= wide_place_bytes && r.u32(end - wide_place_bytes) == wide_place_mark) {
    const std::uint64_t wide = r.u64(end - wide_place_bytes + 8);
    r.need(wide, wide_end_bytes);
    if (r.u32(wide) != wide_end_mark) r.damaged("its zip64 end record is not where it should be");
    d = {.offset = r.u64(wide + 48), .bytes = r.u64(wide + 40), .entries = r.u64(wide + 32)};
  }
  r.need(d.offset, d.bytes);
  if (d.entries > d.bytes / entry_bytes) r.damaged("its central directory is shorter than its entries");
  return d;
}

struct Place {
  std::uint64_t stored, whole, local;    // bytes, bytes before compression, offset of the local header
};

/// Sizes and offset of the directory's entry; those that 32 bits cannot hold stand in the zip64 field, in this order.
Place place_of(const Reader& r, std::uint64_t entry, std::uint64_t extra, std::uint64_t extra_bytes) {
  Place p{.stored = r.u32(entry + 20), .whole = r.u32(entry + 24), .local = r.u32(entry + 42)};
  for (std::uint64_t at = extra; at + 4 <= extra + extra_bytes; at += 4 + r.u16(at + 2)) {
    if (r.u16(at) != 1) continue;
    std::uint64_t next = at + 4;
    const std::uint64_t after = next + r.u16(at + 2);
    for (std::uint64_t* field : {&p.whole, &p.stored, &p.local}) {
      if (*field != in_wide) continue;
      if (next + 8 > after) r.damaged("a zip64 field is too short");
      *field = r.u64(next);
      next += 8;
    }
  }
  return p;
}

template <class T>
void put(std::string& out, std::uint64_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof(T)); }   // little endian

std::uint32_t crc_of(std::string_view bytes) {
  return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

/// What the local header and the directory's entry have in common, from "version needed" to the length of the name.
void put_common(std::string& out, const ZipEntry& entry) {
  put<std::uint16_t>(out, 20), put<std::uint16_t>(out, 0x800), put<std::uint16_t>(out, 0);   // version 2.0; names are UTF-8; stored
  put<std::uint16_t>(out, 0), put<std::uint16_t>(out, 0x21);                                 // 1980-01-01: equal content gives equal bytes
  put<std::uint32_t>(out, entry.crc), put<std::uint32_t>(out, entry.bytes.size()), put<std::uint32_t>(out, entry.bytes.size());
  put<std::uint16_t>(out, entry.name.size());
}

}  // namespace

bool is_zip(std::span<const char> bytes) { return bytes.size() >= 4 && std::memcmp(bytes.data(), "PK\x03\x04", 4) == 0; }

std::vector<ZipEntry> zip_entries(const std::string& path, std::span<const char> archive) {
  const Reader r{path, archive};
  const Directory d = directory_of(r);
  std::vector<ZipEntry> entries;
  std::set<std::string_view> names;
  std::uint64_t at = d.offset, total = 0;
  for (std::uint64_t i = 0; i < d.entries; ++i) {
    if (r.u32(at) != entry_mark) r.damaged("an entry of its central directory has no mark");
    const std::uint64_t name_bytes = r.u16(at + 28), extra_bytes = r.u16(at + 30), comment_bytes = r.u16(at + 32);
    const std::string_view name = r.text(at + entry_bytes, name_bytes);
    r.need(at + entry_bytes + name_bytes, extra_bytes);
    const Place p = place_of(r, at, at + entry_bytes + name_bytes, extra_bytes);
    r.need(p.local, local_bytes);
    if (r.u32(p.local) != local_mark) r.damaged("an entry is not where its central directory says");
    const std::uint64_t begin = p.local + local_bytes + r.u16(p.local + 26) + r.u16(p.local + 28);
    if (r.text(p.local + local_bytes, r.u16(p.local + 26)) != name) r.damaged("an entry has two names");
    if (!names.insert(name).second) r.damaged("a name comes twice");
    entries.push_back({.name = name, .bytes = r.text(begin, p.stored), .crc = static_cast<std::uint32_t>(r.u32(at + 16)),
                       .is_stored = (r.u16(at + 8) & 1) == 0 && r.u16(at + 10) == 0 && p.stored == p.whole});
    total += p.stored;
    if (total > archive.size()) r.damaged("its entries lie over one another");
    at += entry_bytes + name_bytes + extra_bytes + comment_bytes;
  }
  return entries;
}

void require_whole(const std::string& path, const ZipEntry& entry) {
  require(entry.is_stored, path, ": ", entry.name, " is compressed or encrypted, as torch.save never leaves it. Load it with PyTorch and save it again.");
  require(crc_of(entry.bytes) == entry.crc, path, ": ", entry.name, " differs from its checksum: the file is damaged. Download it again, or save it again with PyTorch's checksums left on.");
}

void write_zip(const std::string& path, std::vector<ZipEntry> entries) {
  std::vector<std::string> headers;
  std::string directory;
  std::uint64_t at = 0;
  for (ZipEntry& entry : entries) {
    entry.crc = crc_of(entry.bytes);
    const std::uint64_t local = at, unpadded = at + local_bytes + entry.name.size() + 4, padding = (alignment - unpadded % alignment) % alignment;
    std::string header;
    put<std::uint32_t>(header, local_mark), put_common(header, entry), put<std::uint16_t>(header, 4 + padding);
    header += entry.name;
    put<std::uint16_t>(header, 0x4246), put<std::uint16_t>(header, padding);   // "FB": the extra field that torch.save pads with
    header.append(padding, 'Z');
    put<std::uint32_t>(directory, entry_mark), put<std::uint16_t>(directory, 20), put_common(directory, entry);
    put<std::uint16_t>(directory, 0), put<std::uint16_t>(directory, 0), put<std::uint16_t>(directory, 0), put<std::uint16_t>(directory, 0);   // extra, comment, disk, text
    put<std::uint32_t>(directory, 0), put<std::uint32_t>(directory, local);
    directory += entry.name;
    at += header.size() + entry.bytes.size();
    headers.push_back(std::move(header));
  }
  require(at + directory.size() < in_wide && entries.size() < 0xffff, path, " would be larger than 4 GiB. Export to .safetensors.");
  const std::uint64_t directory_bytes = directory.size();
  put<std::uint32_t>(directory, end_mark), put<std::uint16_t>(directory, 0), put<std::uint16_t>(directory, 0);
  put<std::uint16_t>(directory, entries.size()), put<std::uint16_t>(directory, entries.size());
  put<std::uint32_t>(directory, directory_bytes), put<std::uint32_t>(directory, at), put<std::uint16_t>(directory, 0);
  std::vector<std::string_view> parts;
  for (std::size_t i = 0; i < entries.size(); ++i) parts.push_back(headers[i]), parts.push_back(entries[i].bytes);
  parts.push_back(directory);
  write_whole_file(path, parts);
}

}  // namespace lockstep
