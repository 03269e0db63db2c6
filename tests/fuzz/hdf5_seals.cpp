// hdf5_seals.  Source: HDF5 File Format Specification 3.0 (which structures end with a checksum); Jenkins' lookup3, "hashlittle".
#include "fuzz/hdf5_seals.hpp"

#include <cstdint>
#include <cstring>

#include "storage/sealed_file.hpp"

namespace lockstep::fuzz {
namespace {

constexpr std::size_t trailer_bytes = 48;

template <class T>
T at(const std::string& bytes, std::size_t offset) {
  T value{};
  if (offset + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}
template <class T>
void set(std::string& bytes, std::size_t offset, T value) {
  if (offset + sizeof value <= bytes.size()) std::memcpy(bytes.data() + offset, &value, sizeof value);
}

std::uint32_t lookup3(const char* data, std::size_t length) {
  const auto rotate = [](std::uint32_t x, int k) { return x << k | x >> (32 - k); };
  std::uint32_t a = 0xdeadbeef + static_cast<std::uint32_t>(length), b = a, c = a;
  const auto* p = reinterpret_cast<const unsigned char*>(data);
  const auto word = [&](std::size_t from, std::size_t bytes) {
    std::uint32_t w = 0;
    for (std::size_t i = from; i < from + 4 && i < bytes; ++i) w |= std::uint32_t{p[i]} << (8 * (i - from));
    return w;
  };
  for (; length > 12; length -= 12, p += 12) {
    a += word(0, 12), b += word(4, 12), c += word(8, 12);
    a -= c, a ^= rotate(c, 4), c += b, b -= a, b ^= rotate(a, 6), a += c, c -= b, c ^= rotate(b, 8), b += a;
    a -= c, a ^= rotate(c, 16), c += b, b -= a, b ^= rotate(a, 19), a += c, c -= b, c ^= rotate(b, 4), b += a;
  }
  if (length == 0) return c;
  a += word(0, length), b += word(4, length), c += word(8, length);
  c ^= b, c -= rotate(b, 14), a ^= c, a -= rotate(c, 11), b ^= a, b -= rotate(a, 25), c ^= b, c -= rotate(b, 16);
  a ^= c, a -= rotate(c, 4), b ^= a, b -= rotate(a, 14), c ^= b, c -= rotate(b, 24);
  return c;
}

/// Writes the checksum of [begin, end) behind it.
void check_range(std::string& file, std::size_t begin, std::size_t end) {
  if (begin <= end && end + 4 <= file.size()) set(file, end, lookup3(file.data() + begin, end - begin));
}

/// What begins at `at` with a structure's mark.  Sizes of offsets and lengths are 8 in files of ours.
void check_structure(std::string& file, std::size_t begin) {
  const std::string mark = file.substr(begin, 4);
  if (mark == "OHDR") {                                                                  // version 2: flags tell which fields come before the size of its messages
    const auto flags = at<std::uint8_t>(file, begin + 5);
    const std::size_t width = std::size_t{1} << (flags & 3), size_at = begin + 6 + (flags & 0x20 ? 16 : 0) + (flags & 0x10 ? 4 : 0);
    std::uint64_t size = 0;
    if (size_at + width > file.size()) return;
    std::memcpy(&size, file.data() + size_at, width);
    if (size < file.size()) check_range(file, begin, size_at + width + size);
  } else if (mark == "FRHP") {                                                           // fractal heap's header, no filters
    check_range(file, begin, begin + 4 + 1 + 2 + 2 + 1 + 4 + 12 * 8 + 2 + 8 + 8 + 2 + 2 + 8 + 2);
  } else if (mark == "BTHD") {                                                           // B-tree version 2: header, leaf and inner node
    check_range(file, begin, begin + 4 + 1 + 1 + 4 + 2 + 2 + 1 + 1 + 8 + 2 + 8);
  } else if (mark == "BTLF") {                                                           // records of attribute names: heap ID 8, flags 1, order 4, hash 4
    const std::size_t root = file.rfind("BTHD", begin);
    if (root != std::string::npos) check_range(file, begin, begin + 6 + std::size_t{at<std::uint16_t>(file, root + 10)} * at<std::uint16_t>(file, root + 24));
  } else if (mark == "FHDB") {                                                           // a direct block: the checksum stands in its header, taken with that field 0
    const std::size_t heap = file.find("FRHP");
    const std::size_t size = heap == std::string::npos ? 0 : static_cast<std::size_t>(at<std::uint64_t>(file, heap + 112));
    const std::size_t field = begin + 4 + 1 + 8 + (heap == std::string::npos ? 0 : (std::size_t{at<std::uint16_t>(file, heap + 128)} + 7) / 8);
    if (size == 0 || size > file.size() - begin || field + 4 > begin + size) return;
    set<std::uint32_t>(file, field, 0);
    set(file, field, lookup3(file.data() + begin, size));
  }
}

void seal_again(std::string& file) {
  if (file.size() < trailer_bytes) return;
  const std::size_t length = file.size() - trailer_bytes;
  std::string trailer = file.substr(length);
  trailer.replace(0, 8, "LOCKSEAL");
  set<std::uint32_t>(trailer, 8, 1), set<std::uint32_t>(trailer, 12, 0);
  set<std::int64_t>(trailer, 16, static_cast<std::int64_t>(length));
  auto begin = at<std::int64_t>(trailer, 24), end = at<std::int64_t>(trailer, 32);
  if (begin < 0 || begin > end || static_cast<std::size_t>(end) > length) begin = end = 0;
  set(trailer, 24, begin), set(trailer, 32, end), set<std::uint32_t>(trailer, 40, 0);
  std::uint32_t crc = crc32c(file.data(), static_cast<std::size_t>(begin));
  crc = crc32c(file.data() + end, length - static_cast<std::size_t>(end), crc);
  set(trailer, 44, crc32c(trailer.data(), trailer_bytes - 4, crc));
  file.replace(length, trailer_bytes, trailer);
}

}  // namespace

std::string resealed(std::string file, Random& random) {
  const std::size_t kind = random.below(8);
  if (kind == 0 || file.size() < trailer_bytes) return file;
  if (kind > 3) {
    if (random.one_in(2)) set<std::uint64_t>(file, 28, file.size() - trailer_bytes);     // the superblock's end of file
    for (std::size_t begin = 0; begin + 8 < file.size(); ++begin)
      if (const char c = file[begin]; c == 'O' || c == 'F' || c == 'B') check_structure(file, begin);
    check_range(file, 0, 44);                                                            // superblock of version 2 and 3
  }
  seal_again(file);
  return file;
}

}  // namespace lockstep::fuzz
