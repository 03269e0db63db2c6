#include "storage/file_lock.hpp"

#include <sys/file.h>
#include <sys/stat.h>

#include "base/error.hpp"

namespace lockstep {

FileLock::FileLock(const std::string& path, Kind kind, bool waits, const std::function<void()>& tick) : path_(path), file_(-1) {
  const int how = (kind == Kind::alone ? LOCK_EX : LOCK_SH) | LOCK_NB;
  constexpr unsigned between_tries = 200000;   // microseconds
  for (;;) {
    Descriptor opened(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!opened && !waits) return;       // another user's
    if (!opened) fail(path, " cannot be made: ", reason(), ".");
    while (::flock(opened.fd, how) != 0) {
      if (errno == EWOULDBLOCK && !waits) return;
      if (errno == EWOULDBLOCK) ::usleep(between_tries), tick();
      else if (errno != EINTR) fail(path, " cannot be locked: ", reason(), ".");
    }
    struct stat locked {}, there {};
    if (::fstat(opened.fd, &locked) == 0 && ::stat(path.c_str(), &there) == 0 && locked.st_ino == there.st_ino && locked.st_dev == there.st_dev) {
      file_.fd = std::exchange(opened.fd, -1);
      return;
    }                                    // its file was removed by who held it before
  }
}

void FileLock::touch() const { ::futimens(file_.fd, nullptr); }
void FileLock::remove() const { ::unlink(path_.c_str()); }

}  // namespace lockstep
