// POSIX ustar: 512-byte headers (name at 0, size in octal at 124, type at 156), contents padded to 512.  zlib reads plain files too.
#include "convert/tar.hpp"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/error.hpp"

namespace lockstep {
namespace {

constexpr std::size_t block = 512, chunk = 1 << 20;
constexpr std::uint64_t largest_total = std::uint64_t{1} << 30;   // of the contents; CIFAR's are 184 MB, and a few KB of .gz may hold GB
struct Close { void operator()(gzFile file) const { gzclose(file); } };
using File = std::unique_ptr<std::remove_pointer_t<gzFile>, Close>;

void read_exactly(const std::string& path, gzFile file, char* to, std::size_t bytes) {
  while (bytes > 0) {
    const int got = gzread(file, to, static_cast<unsigned>(std::min<std::size_t>(bytes, 1u << 30)));
    int code = 0;
    if (got <= 0) fail(path, ": is damaged or cut off (", got < 0 ? gzerror(file, &code) : "ends early", "). Download it again");
    to += got, bytes -= static_cast<std::size_t>(got);
  }
}

/// The octal digits of a header's size, up to a space or NUL.
std::uint64_t size_in(const std::string& path, const char* header) {
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < 11 && header[124 + i] != ' ' && header[124 + i] != '\0'; ++i) {
    const char digit = header[124 + i];
    require(digit >= '0' && digit <= '7', path, ": is damaged: a file in it has no size. Download it again");
    size = 8 * size + static_cast<std::uint64_t>(digit - '0');
  }
  return size;
}

/// So many bytes, as far as they are there: memory is taken as they come, not as a header says.
std::string read_content(const std::string& path, gzFile file, std::uint64_t bytes) {
  std::string content;
  while (content.size() < bytes) {
    const std::size_t before = content.size(), more = std::min<std::size_t>(chunk, bytes - before);
    content.resize(before + more);
    read_exactly(path, file, content.data() + before, more);
  }
  return content;
}

}  // namespace

std::map<std::string, std::string> read_tar(const std::string& path) {
  const File file(gzopen(path.c_str(), "rb"));
  require(file != nullptr, path, ": cannot be opened: ", std::strerror(errno));
  gzbuffer(file.get(), 1 << 20);
  std::map<std::string, std::string> files;
  std::uint64_t total = 0;
  char header[block];
  while (true) {
    read_exactly(path, file.get(), header, block);
    if (header[0] == '\0') break;                                   // the end is two blocks of zeros
    require(std::memcmp(header + 257, "ustar", 5) == 0, path, ": is no tar archive");
    const std::string name(header, strnlen(header, 100));
    const std::uint64_t size = size_in(path, header);
    require(size <= largest_total - total, path, ": holds more than ", largest_total >> 30, " GiB: it is no archive of CIFAR. Name the .tar.gz as downloaded");
    total += size;
    std::string content = read_content(path, file.get(), size);
    char padding[block];
    read_exactly(path, file.get(), padding, (block - content.size() % block) % block);
    if (header[156] == '0' || header[156] == '\0') files[name.substr(name.find_last_of('/') + 1)] = std::move(content);
  }
  return files;
}

}  // namespace lockstep
