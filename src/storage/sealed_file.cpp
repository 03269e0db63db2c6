// sealed_file: CRC-32C, and the trailer that it is kept in.
// Trailer, 48 bytes, little endian: "LOCKSEAL", u32 version, u32 0, i64 bytes before the trailer, i64 begin and end of the range left out,
// u32 0, u32 CRC-32C of the file up to here without that range.
#include "storage/sealed_file.hpp"

#include <nmmintrin.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "storage/descriptor.hpp"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little endian, and written as memory lies");

struct Trailer {
  char magic[8] = {'L', 'O', 'C', 'K', 'S', 'E', 'A', 'L'};   // seal_magic
  std::uint32_t version = 1, reserved = 0;
  std::int64_t length = 0, begin = 0, end = 0;
  std::uint32_t padding = 0, crc = 0;
};
static_assert(sizeof(Trailer) == seal_bytes);
constexpr std::int64_t trailer_bytes = seal_bytes, covered_bytes = trailer_bytes - sizeof(std::uint32_t);
constexpr std::size_t block_bytes = 1 << 20;
constexpr std::int64_t sync_bytes = 16 << 20;

/// tables[k][b]: the CRC of byte b followed by k zero bytes ("slicing by 8", Kounavis and Berry 2005).
constexpr auto tables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> t{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    t[0][b] = crc;
  }
  for (std::uint32_t b = 0; b < 256; ++b)
    for (std::size_t k = 1; k < 8; ++k) t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 255];
  return t;
}();

__attribute__((target("sse4.2"))) std::uint32_t crc32c_by_instruction(const void* data, std::size_t bytes, std::uint32_t crc) {
  const auto* p = static_cast<const std::uint8_t*>(data);
  std::uint64_t wide = static_cast<std::uint32_t>(~crc);
  for (; bytes >= 8; bytes -= 8, p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<std::uint32_t>(wide);
  for (; bytes > 0; --bytes, ++p) crc = _mm_crc32_u8(crc, *p);
  return ~crc;
}

/// Continues `crc` over [begin, end) of the file, and keeps what it reads in `kept`, if there is any.  Returns what went wrong, or nothing.
std::string checksum(const Descriptor& file, std::int64_t begin, std::int64_t end, std::uint32_t& crc, const std::function<void()>& tick, const SealedBytes& kept) {
  std::vector<char> block(kept ? 0 : std::min<std::size_t>(block_bytes, static_cast<std::size_t>(std::max<std::int64_t>(end - begin, 0))));
  while (begin < end) {
    char* to = kept ? kept.bytes().data() + begin : block.data();
    const auto bytes = std::min<std::int64_t>(static_cast<std::int64_t>(block_bytes), end - begin);
    const std::int64_t got = read_at(file, to, bytes, begin);
    if (got < 0) return "cannot be read: " + reason();
    if (got < bytes) return "became shorter while it was read";
    crc = crc32c(to, static_cast<std::size_t>(bytes), crc);
    begin += bytes;
    if (tick) tick();
  }
  return "";
}

/// The CRC over a file of `trailer.length` bytes and the trailer's own fields.
std::string checksum_of(const Descriptor& file, const Trailer& trailer, std::uint32_t& crc, const std::function<void()>& tick, const SealedBytes& kept = SealedBytes()) {
  crc = 0;
  if (std::string wrong = checksum(file, 0, trailer.begin, crc, tick, kept); !wrong.empty()) return wrong;
  if (std::string wrong = checksum(file, trailer.end, trailer.length, crc, tick, kept); !wrong.empty()) return wrong;
  crc = crc32c(&trailer, covered_bytes, crc);
  return "";
}

bool is_range(const Trailer& t) { return 0 <= t.begin && t.begin <= t.end && t.end <= t.length; }

/// A file without a trailer: HDF5's superblock (version 2 and 3) tells how long it was meant to be.
std::string why_no_seal(const Descriptor& file, std::int64_t size) {
  std::array<char, 48> block{};
  if (read_at(file, block.data(), block.size(), 0) < 0) return "cannot be read: " + reason();
  const bool is_hdf5 = std::memcmp(block.data(), "\x89HDF\r\n\x1a\n", 8) == 0;
  if (is_hdf5 && (block[8] == 2 || block[8] == 3) && block[9] == 8) {
    std::uint64_t end;
    std::memcpy(&end, block.data() + 28, sizeof end);
    const std::uint64_t whole = end + static_cast<std::uint64_t>(trailer_bytes);
    if (end < std::uint64_t{1} << 62 && static_cast<std::uint64_t>(size) < whole) return text_of("is truncated: it has ", size, " of ", whole, " bytes");
  }
  return is_hdf5 ? "has no seal: it was not written to its end, was changed by another program, or lockstep did not make it"
                 : "has no seal and is no HDF5 file: lockstep did not make it, or its first bytes are lost";
}

void sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const Descriptor file(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY);
  // Some network file systems cannot sync a folder, and need not: their rename is synchronous.
  if (file && ::fsync(file.fd) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EBADF)
    fail(folder, ": cannot be made durable: ", reason(), ". Check the file system.");
}

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  return has_instruction ? crc32c_by_instruction(data, bytes, crc) : crc32c_by_table(data, bytes, crc);
}

std::uint32_t crc32c_by_table(const void* data, std::size_t bytes, std::uint32_t crc) {
  const auto* p = static_cast<const std::uint8_t*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    std::uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= crc;
    crc = tables[7][low & 255] ^ tables[6][(low >> 8) & 255] ^ tables[5][(low >> 16) & 255] ^ tables[4][low >> 24] ^
          tables[3][high & 255] ^ tables[2][(high >> 8) & 255] ^ tables[1][(high >> 16) & 255] ^ tables[0][high >> 24];
  }
  for (; bytes > 0; --bytes, ++p) crc = (crc >> 8) ^ tables[0][(crc ^ *p) & 255];
  return ~crc;
}

void seal(const std::string& path, ByteRange left_out, const std::function<void()>& tick) {
  const Descriptor file(path, O_RDWR);
  if (!file) fail(path, ": cannot be opened to be sealed: ", reason(), ".");
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail(path, ": cannot be read: ", reason(), ".");
  Trailer trailer;
  trailer.length = status.st_size, trailer.begin = left_out.begin, trailer.end = left_out.end;
  if (!is_range(trailer)) fail_with(exit_internal, path, ": the range [", left_out.begin, ", ", left_out.end, ") is not inside its ", status.st_size, " bytes.");
  const std::string wrong = checksum_of(file, trailer, trailer.crc, tick);
  require(wrong.empty(), path, ": ", wrong, ".");
  // Piece by piece: one fsync of gigabytes on a slow disk would look like a stall.
  for (std::int64_t at = 0; at < trailer.length; at += sync_bytes) {
    // An error that is told here is not told again by fsync.  Other ones mean that this file system cannot: fsync does it all.
    const bool is_synced = ::sync_file_range(file.fd, at, sync_bytes, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) == 0;
    if (!is_synced && (errno == EIO || errno == ENOSPC || errno == EDQUOT)) fail(path, ": cannot be written to disk: ", reason(), ". Free space, or write elsewhere.");
    if (tick) tick();
  }
  if (!write_at(file, &trailer, trailer_bytes, trailer.length)) fail(path, ": cannot be written: ", reason(), ". Free space, or write elsewhere.");
  if (::fsync(file.fd) != 0) fail(path, ": cannot be written to disk: ", reason(), ". Free space, or write elsewhere.");
}

namespace {

/// damage_of; the bytes go to `kept` where it is given and they are not too many.
std::string find_damage(const std::string& path, const std::function<void()>& tick, SealedBytes* kept) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno == ENOENT ? "does not exist" : "cannot be read: " + reason();
  if (S_ISDIR(status.st_mode)) return "is a folder";
  if (!S_ISREG(status.st_mode)) return "is no regular file";
  const Descriptor file(path, O_RDONLY);
  if (!file || ::fstat(file.fd, &status) != 0) return "cannot be read: " + reason();
  const std::int64_t size = status.st_size;
  if (size == 0) return "is empty";

  Trailer trailer;
  if (size < trailer_bytes) return why_no_seal(file, size);
  const std::int64_t got = read_at(file, &trailer, trailer_bytes, size - trailer_bytes);
  if (got < 0) return "cannot be read: " + reason();
  if (got < trailer_bytes) return "became shorter while it was read";
  const Trailer pattern;
  if (std::memcmp(trailer.magic, pattern.magic, sizeof pattern.magic) != 0) return why_no_seal(file, size);
  // A wrong version, length or range is either damage or a file of a later lockstep; only whole fields can tell.
  if (trailer.length == size - trailer_bytes && is_range(trailer)) {
    std::uint32_t crc = 0;
    SealedBytes bytes(kept && trailer.length - (trailer.end - trailer.begin) <= SealedBytes::most ? size : 0);
    if (std::string wrong = checksum_of(file, trailer, crc, tick, bytes); !wrong.empty()) return wrong;
    if (bytes) std::memcpy(bytes.bytes().data() + trailer.length, &trailer, sizeof trailer);
    if (kept) *kept = std::move(bytes);
    if (crc == trailer.crc)
      return trailer.version == pattern.version ? "" : text_of("has a seal of version ", trailer.version, "; this lockstep knows version ", pattern.version);
    return "differs from its checksum";
  }
  return trailer.length > size - trailer_bytes ? text_of("is truncated: it has ", size, " of ", trailer.length, " + ", trailer_bytes, " bytes") : "has a damaged seal";
}

void require_whole(const std::string& path, const std::string& damage) {
  std::error_code unknown;
  require(damage.empty(), path, ": ", damage, std::filesystem::is_regular_file(path, unknown) ? ". Use a whole copy of it, or make it again." : ". Name a file of lockstep's.");
}

}  // namespace

std::string damage_of(const std::string& path, const std::function<void()>& tick) { return find_damage(path, tick, nullptr); }
void verify_seal(const std::string& path, const std::function<void()>& tick) { require_whole(path, find_damage(path, tick, nullptr)); }

SealedBytes::SealedBytes(std::int64_t file_bytes) {
  if (file_bytes <= 0) return;
  const auto size = static_cast<std::size_t>(file_bytes);
  void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped != MAP_FAILED) bytes_ = {static_cast<char*>(mapped), Unmap{size}};
}
void SealedBytes::Unmap::operator()(char* bytes) const { ::munmap(bytes, size); }

SealedBytes read_sealed(const std::string& path) {
  SealedBytes kept;
  require_whole(path, find_damage(path, {}, &kept));
  return kept;
}

void publish(const std::string& temporary, const std::string& path) {
  {
    const Descriptor file(temporary, O_RDONLY);
    if (!file || ::fsync(file.fd) != 0) fail(temporary, ": cannot be written to disk: ", reason(), ". Free space, or write elsewhere.");
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail(path, ": cannot be put in place of ", temporary, ": ", reason(), ". Check that the folder can be written.");
  sync_folder_of(path);
}

std::int64_t free_bytes(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::path at = fs::absolute(folder, ignored);
  while (!fs::exists(at, ignored) && at.has_relative_path()) at = at.parent_path();
  struct statvfs space {};
  if (::statvfs(at.c_str(), &space) != 0) fail(at.string(), ": its free space cannot be read: ", reason(), ".");
  return static_cast<std::int64_t>(space.f_bavail) * static_cast<std::int64_t>(space.f_frsize);
}

}  // namespace lockstep
