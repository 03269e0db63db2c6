// shim: makes a storage device fail, fill up or be slow, for the files whose path holds a text.  Preloaded (LD_PRELOAD); tests/system/shim.py sets it up.
//   SHIM_PATH    text that the path of the file must hold
//   SHIM_CALLS   any of "write fsync rename close open read"
//   SHIM_ERRNO   what they fail with; 0: they do not
//   SHIM_AFTER   bytes (write) or calls (all others) of a process that succeed before; the write that passes this is cut there, as a full disk does
//   SHIM_DELAY   microseconds that each of them takes longer
//   SHIM_WHILE   all this holds only while this file exists; unset: always
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static atomic_long used;

static const char* setting(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}
static long number(const char* name) { return atol(setting(name)); }
static void* next(const char* name) { return dlsym(RTLD_NEXT, name); }

static int is_meant(const char* call, const char* path) {
  const char* part = setting("SHIM_PATH");
  if (!*part || !strstr(path, part) || !strstr(setting("SHIM_CALLS"), call)) return 0;
  const char* file = setting("SHIM_WHILE");
  return !*file || faccessat(AT_FDCWD, file, F_OK, 0) == 0;
}
static int is_meant_fd(const char* call, int fd) {
  if (!*setting("SHIM_PATH")) return 0;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return is_meant(call, path);
}

/// How many of `amount` bytes or calls still succeed; less than all: errno is set.
static long allowed(long amount) {
  const long delay = number("SHIM_DELAY");
  if (delay > 0) nanosleep(&(struct timespec){delay / 1000000, delay % 1000000 * 1000}, NULL);
  const int code = (int)number("SHIM_ERRNO");
  if (code == 0) return amount;
  const long room = number("SHIM_AFTER") - atomic_fetch_add(&used, amount);
  if (room >= amount) return amount;
  errno = code;
  return room > 0 ? room : 0;
}

#define WRITE(name, type, ...)                                                                  \
  ssize_t name(int fd, const void* data, size_t bytes __VA_OPT__(, type offset)) {              \
    static ssize_t (*real)(int, const void*, size_t __VA_OPT__(, type));                        \
    if (!real) real = next(#name);                                                              \
    if (bytes > 0 && is_meant_fd("write", fd)) {                                                \
      const long room = allowed((long)bytes);                                                   \
      if (room == 0) return -1;                                                                 \
      bytes = (size_t)room;                                                                     \
    }                                                                                           \
    return real(fd, data, bytes __VA_OPT__(, offset));                                          \
  }
WRITE(write, )
WRITE(pwrite, off_t, offset)
WRITE(pwrite64, off64_t, offset)

ssize_t writev(int fd, const struct iovec* parts, int count) {
  static ssize_t (*real)(int, const struct iovec*, int);
  if (!real) real = next("writev");
  if (count > 0 && is_meant_fd("write", fd)) return write(fd, parts[0].iov_base, parts[0].iov_len);
  return real(fd, parts, count);
}

#define READ(name, type, ...)                                                                   \
  ssize_t name(int fd, void* data, size_t bytes __VA_OPT__(, type offset)) {                    \
    static ssize_t (*real)(int, void*, size_t __VA_OPT__(, type));                              \
    if (!real) real = next(#name);                                                              \
    if (is_meant_fd("read", fd) && allowed(1) == 0) return -1;                                  \
    return real(fd, data, bytes __VA_OPT__(, offset));                                          \
  }
READ(read, )
READ(pread, off_t, offset)
READ(pread64, off64_t, offset)

#define ON_FD(name, call)                                                                       \
  int name(int fd) {                                                                            \
    static int (*real)(int);                                                                    \
    if (!real) real = next(#name);                                                              \
    const int fails = is_meant_fd(call, fd) && allowed(1) == 0, code = errno;                   \
    const int result = fails && strcmp(call, "close") != 0 ? 0 : real(fd);                      \
    if (fails) errno = code;                                                                    \
    return fails ? -1 : result;                                                                 \
  }
ON_FD(fsync, "fsync")
ON_FD(fdatasync, "fsync")
ON_FD(close, "close")   // the descriptor is closed all the same, as Linux does

int rename(const char* from, const char* to) {
  static int (*real)(const char*, const char*);
  if (!real) real = next("rename");
  return is_meant("rename", to) && allowed(1) == 0 ? -1 : real(from, to);
}

#define OPEN(name)                                                                              \
  int name(const char* path, int flags, ...) {                                                  \
    static int (*real)(const char*, int, ...);                                                  \
    if (!real) real = next(#name);                                                              \
    va_list rest;                                                                               \
    va_start(rest, flags);                                                                      \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;               \
    va_end(rest);                                                                               \
    if ((flags & O_ACCMODE) != O_RDONLY && is_meant("open", path) && allowed(1) == 0) return -1; \
    return real(path, flags, mode);                                                             \
  }
OPEN(open)
OPEN(open64)
