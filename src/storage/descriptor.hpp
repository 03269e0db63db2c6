// descriptor: an open file that closes itself, and reads and writes that finish what they start.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace lockstep {

struct Descriptor {
  int fd;                                    // -1: not open, errno says why
  explicit Descriptor(int opened) : fd(opened) {}
  Descriptor(const std::string& path, int flags) : fd(::open(path.c_str(), flags | O_CLOEXEC)) {}
  ~Descriptor() { if (fd >= 0) ::close(fd); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  explicit operator bool() const { return fd >= 0; }
  bool close() { return ::close(std::exchange(fd, -1)) == 0; }   // a network file system may say only now that it had no room
};

/// What errno says.  Not for require(call(), ..., reason()): a function's arguments are made in any order, this one before the call.
inline std::string reason() { return std::strerror(errno); }

/// Bytes read at `offset`: fewer than asked only at the file's end; -1 on an error, with errno.
inline std::int64_t read_at(const Descriptor& file, void* data, std::int64_t bytes, std::int64_t offset) {
  std::int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(file.fd, static_cast<char*>(data) + done, static_cast<std::size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += got;
  }
  return done;
}

/// False on an error, with errno.
inline bool write_at(const Descriptor& file, const void* data, std::int64_t bytes, std::int64_t offset) {
  std::int64_t done = 0;
  while (done < bytes) {
    const ssize_t put = ::pwrite(file.fd, static_cast<const char*>(data) + done, static_cast<std::size_t>(bytes - done), offset + done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += put;
  }
  return true;
}

}  // namespace lockstep
