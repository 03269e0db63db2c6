// POSIX ustar: 512-byte headers (name at 0, size in octal at 124, type at 156), contents padded to 512.  zlib reads plain files too.
#include "convert/tar.hpp"

#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.hpp"

namespace lockstep {
namespace {

constexpr std::size_t block = 512;
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

}  // namespace

std::map<std::string, std::string> read_tar(const std::string& path) {
  const File file(gzopen(path.c_str(), "rb"));
  require(file != nullptr, path, ": cannot be opened: ", std::strerror(errno));
  gzbuffer(file.get(), 1 << 20);
  std::map<std::string, std::string> files;
  char header[block];
  while (true) {
    read_exactly(path, file.get(), header, block);
    if (header[0] == '\0') break;                                   // the end is two blocks of zeros
    require(std::memcmp(header + 257, "ustar", 5) == 0, path, ": is no tar archive");
    const std::string name(header, strnlen(header, 100)), octal(header + 124, 11);
    std::string content(std::stoull(octal, nullptr, 8), '\0');
    read_exactly(path, file.get(), content.data(), content.size());
    char padding[block];
    read_exactly(path, file.get(), padding, (block - content.size() % block) % block);
    if (header[156] == '0' || header[156] == '\0') files[name.substr(name.find_last_of('/') + 1)] = std::move(content);
  }
  return files;
}

}  // namespace lockstep
