/* strange_host: a host as some clusters have them, in front of any program by LD_PRELOAD.  Each trait is asked for by a variable:
   STRANGE_CLOCK=SECONDS  the wall clock is wrong by SECONDS x (rank + 1), and goes backwards from call to call
   STRANGE_LOCKS=no       no file system has locks: flock and fcntl's locks fail as on one mounted without them
   STRANGE_LOCALE=NAME    some library of the process has called setlocale(LC_ALL, NAME)
   Compiled by misuse_test.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/time.h>
#include <time.h>

static long skew(void) {
  static int calls;
  const char *seconds = getenv("STRANGE_CLOCK"), *rank = getenv("OMPI_COMM_WORLD_RANK");
  return seconds ? atol(seconds) * (rank ? atol(rank) + 1 : 1) - 2 * __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*next)(clockid_t, struct timespec *);
  if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
  const int code = next(clock, now);
  if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += skew();
  return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec, now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now) *now = precise.tv_sec;
  return precise.tv_sec;
}

static int has_no_locks(void) { return getenv("STRANGE_LOCKS") != NULL; }

int flock(int file, int operation) {
  static int (*next)(int, int);
  if (!next) *(void **)&next = dlsym(RTLD_NEXT, "flock");
  if (has_no_locks()) return errno = ENOLCK, -1;
  return next(file, operation);
}

static int fcntl_by(const char *name, int file, int command, void *argument) {
  int (*next)(int, int, ...);
  *(void **)&next = dlsym(RTLD_NEXT, name);
  if (has_no_locks() && (command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW)) return errno = ENOLCK, -1;
  return next(file, command, argument);
}
int fcntl(int file, int command, ...) {
  va_list list;
  va_start(list, command);
  void *argument = va_arg(list, void *);
  va_end(list);
  return fcntl_by("fcntl", file, command, argument);
}
int fcntl64(int file, int command, ...) {
  va_list list;
  va_start(list, command);
  void *argument = va_arg(list, void *);
  va_end(list);
  return fcntl_by("fcntl64", file, command, argument);
}

/* After the constructors of the libraries, which come first: main is what calls it. */
static int (*real_main)(int, char **, char **);
static int main_in_locale(int argc, char **argv, char **environment) {
  if (!setlocale(LC_ALL, getenv("STRANGE_LOCALE"))) abort();
  return real_main(argc, argv, environment);
}
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void), void (*rtld)(void), void *end) {
  int (*next)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
  *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
  real_main = main;
  return next(getenv("STRANGE_LOCALE") ? main_in_locale : main, argc, argv, init, fini, rtld, end);
}
