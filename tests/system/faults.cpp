// faults: a library for LD_PRELOAD that lets a rank of lockstep die, stop, hang or slow down inside a function that belongs to a phase, so that the
// program itself needs no test code.  harness.py compiles it.
// In: LOCKSTEP_FAULT="RANK ACTION FUNCTION N [VALUE]; ...": at the N-th call of FUNCTION on that rank.  LOCKSTEP_FAULT_FILE: gets a line when it acts
// (clock, what); where the file exists at the start of the program nothing happens, so that a job which starts again is not struck again.
// ACTION: kill, segv, throw, bad_alloc, exit VALUE, stop (SIGSTOP), term (SIGTERM), hang, pause VALUE (seconds), gpu (a kernel that writes to an illegal
// address); slow VALUE: that call and all later ones take so many seconds more.
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Fault {
  int rank = 0;
  std::string action, function;
  long at = 0;
  double value = 0;
  std::atomic<long> calls{0};
  Fault(int r, std::string a, std::string f, long n, double v) : rank(r), action(std::move(a)), function(std::move(f)), at(n), value(v) {}
};

int rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"})
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return 0;
}

const char* file() { return std::getenv("LOCKSTEP_FAULT_FILE"); }

/// Those of this rank; none in the launcher's own processes.  Never freed: calls come to the very end.
std::vector<Fault*>& faults() {
  static auto* const found = [] {
    auto* list = new std::vector<Fault*>;
    const char* text = std::getenv("LOCKSTEP_FAULT");
    if (!text || std::strcmp(program_invocation_short_name, "lockstep") != 0 || (file() && access(file(), F_OK) == 0)) return list;
    std::istringstream all(text);
    for (std::string one; std::getline(all, one, ';');) {
      std::istringstream words(one);
      int who = 0;
      std::string action, function;
      long at = 0;
      double value = 0;
      if (words >> who >> action >> function >> at && who == rank()) words >> value, list->push_back(new Fault(who, action, function, at, value));
    }
    return list;
  }();
  return *found;
}

void pause_for(double seconds) {
  timespec left{static_cast<time_t>(seconds), static_cast<long>(1e9 * (seconds - static_cast<double>(static_cast<time_t>(seconds))))};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

void tell(const Fault& fault) {
  if (!file()) return;
  if (FILE* out = std::fopen(file(), "a")) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    std::fprintf(out, "%ld.%06ld rank %d %s in %s\n", static_cast<long>(now.tv_sec), now.tv_nsec / 1000, fault.rank, fault.action.c_str(), fault.function.c_str());
    std::fclose(out);
  }
}

/// By the driver alone, so that a build for CPUs needs nothing of CUDA.  The fault shows in one of the program's next calls.
void write_to_illegal_address() {
  static const char kernel[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry wild() { .reg .b64 %rd1; mov.u64 %rd1, 16; st.global.u32 [%rd1], 1; ret; }\n";
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto load = reinterpret_cast<int (*)(void**, const void*)>(driver ? dlsym(driver, "cuModuleLoadData") : nullptr);
  const auto find = reinterpret_cast<int (*)(void**, void*, const char*)>(driver ? dlsym(driver, "cuModuleGetFunction") : nullptr);
  const auto launch = reinterpret_cast<int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**)>(
      driver ? dlsym(driver, "cuLaunchKernel") : nullptr);
  void *module = nullptr, *function = nullptr;
  if (!load || !find || !launch || load(&module, kernel) != 0 || find(&function, module, "wild") != 0 ||
      launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) != 0) {
    std::fprintf(stderr, "faults: no kernel could be launched\n");
    _exit(0);                                          // so that the test that waits for a death fails
  }
}

/// noinline: an exception must have a frame to start from.
__attribute__((noinline)) void act(const char* function) {
  for (Fault* fault : faults()) {
    if (fault->function != function) continue;
    const long call = ++fault->calls;
    if (call < fault->at) continue;
    const std::string& action = fault->action;
    if (call == fault->at) tell(*fault);
    if (action == "slow" || (action == "pause" && call == fault->at)) pause_for(fault->value);
    if (call > fault->at) continue;
    if (action == "kill") raise(SIGKILL);
    if (action == "stop") raise(SIGSTOP);
    if (action == "term") kill(getpid(), SIGTERM);
    if (action == "segv") *static_cast<volatile int*>(nullptr) = 1;
    if (action == "exit") std::exit(static_cast<int>(fault->value));
    if (action == "throw") throw std::runtime_error("a fault of the test");
    if (action == "bad_alloc") throw std::bad_alloc();
    if (action == "gpu") write_to_illegal_address();
    if (action == "hang")
      for (;;) pause_for(1000);
  }
}

}  // namespace

// The functions' arguments are integers and pointers, so handing eight words on hands on all of them.
#define LOCKSTEP_WATCH(name)                                                                                                      \
  extern "C" __attribute__((visibility("default"))) long watched_##name(long, long, long, long, long, long, long, long) asm(#name); \
  long watched_##name(long a, long b, long c, long d, long e, long f, long g, long h) {                                            \
    act(#name);                                                                                                                   \
    static const auto real = reinterpret_cast<long (*)(long, long, long, long, long, long, long, long)>(dlsym(RTLD_NEXT, #name));   \
    return real(a, b, c, d, e, f, g, h);                                                                                          \
  }
LOCKSTEP_WATCH(MPI_Init_thread)       // start
LOCKSTEP_WATCH(MPI_Gather)            // start
LOCKSTEP_WATCH(MPI_Iallreduce)        // each step, each evaluated batch
LOCKSTEP_WATCH(MPI_Barrier)           // the end of the run
LOCKSTEP_WATCH(MPI_Finalize)          // teardown
LOCKSTEP_WATCH(H5Dwrite)              // checkpoint, rank 0
LOCKSTEP_WATCH(pwrite)
LOCKSTEP_WATCH(pwrite64)
LOCKSTEP_WATCH(pread)                 // reader threads
LOCKSTEP_WATCH(pread64)
LOCKSTEP_WATCH(fsync)
