// session: MPI's lifetime, what a rank calls itself in messages, and the way all ranks end together.
// The launcher's variables are read here, so that a launch that cannot work is explained before any work is done.
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <thread>

#include "comm/communicator.hpp"
#include "comm/mpi_check.hpp"

namespace lockstep {
namespace {

bool has_variable(const char* name) { return std::getenv(name) != nullptr; }

int number_in(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

/// What the launcher says; -1 and 0 where it says nothing.  mpirun's word counts first: inside a Slurm allocation Slurm's variables
/// describe mpirun's own daemons.
struct Launch {
  int rank = -1, size = 0;
};
Launch launch() {
  if (has_variable("OMPI_COMM_WORLD_SIZE")) return {number_in("OMPI_COMM_WORLD_RANK", -1), number_in("OMPI_COMM_WORLD_SIZE", 0)};
  if (has_variable("PMI_SIZE")) return {number_in("PMI_RANK", -1), number_in("PMI_SIZE", 0)};
  if (has_variable("SLURM_STEP_NUM_TASKS")) return {number_in("SLURM_PROCID", -1), number_in("SLURM_STEP_NUM_TASKS", 0)};
  return {};
}

/// Whether the launcher left an address where the ranks of MPI can meet.
bool has_rendezvous() {
  for (const char* name : {"PMIX_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_FD", "PMI_SIZE"})
    if (has_variable(name)) return true;
  return false;
}

/// A user without an entry in passwd (containers, `srun --uid`) and without HOME: PMIx asks for a home, takes it for granted and crashes.
void give_a_home() {
  if (!has_variable("HOME") && !::getpwuid(::getuid())) ::setenv("HOME", "/", 0);
}

[[noreturn]] void fail_as_singleton(int tasks) {
  if (has_variable("OMPI_COMM_WORLD_SIZE") || has_variable("PMI_SIZE"))
    fail("the launcher started ", tasks, " processes, but to MPI each of them is alone (1 rank). The launcher belongs to another MPI than the "
         "library that lockstep is linked with. Use the mpirun of the MPI that lockstep was built with (ldd lockstep | grep libmpi).");
  fail("srun started ", tasks, " tasks, but to MPI each of them is alone (1 rank): Slurm gave MPI no way to find the others. "
       "Use `srun --mpi=pmix` (`srun --mpi=list` shows what this Slurm has), or start lockstep with mpirun inside the allocation.");
}

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv) {
  const Launch told = launch();
  if (told.size > 1 && !has_rendezvous()) fail_as_singleton(told.size);     // MPI_Init would only abort, in its own words
  give_a_home();
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided));
  if (told.size > 1 && size() == 1) fail_as_singleton(told.size);
  if (provided < MPI_THREAD_MULTIPLE) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(library, &length);
    const std::string_view words(library);
    fail("this MPI (", words.substr(0, words.find_first_of(",\n")), ") does not offer MPI_THREAD_MULTIPLE, which the watchdog needs. "
         "Use an MPI with thread support (Open MPI 3 and newer, as in Debian); MVAPICH: set MV2_ENABLE_AFFINITY=0; "
         "Cray MPICH: set MPICH_MAX_THREAD_SAFETY=multiple.");
  }
}

MpiSession::~MpiSession() {
  if (is_mpi_up() && std::uncaught_exceptions() == 0) MPI_Finalize();       // with an exception under way the others are not here: abort_all follows
}

int MpiSession::rank() const {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int MpiSession::size() const {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

std::string host_name() {
  char name[256] = "unknown";
  gethostname(name, sizeof name - 1);
  const std::string_view whole(name);
  return std::string(whole.substr(0, whole.find('.')));
}

std::string rank_name() {
  Launch me = launch();
  if (is_mpi_up()) {
    MPI_Comm_rank(MPI_COMM_WORLD, &me.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &me.size);
  }
  if (me.size == 0) return "";
  return text_of("rank ", std::max(me.rank, 0), " of ", std::max(me.size, 1), ", ", host_name());
}

void abort_all(int code) {
  try {                                                                     // flushing and MPI_Abort can both hang
    std::thread([code] {
      std::this_thread::sleep_for(std::chrono::seconds(5));
      _exit(code);
    }).detach();
  } catch (const std::exception&) {
  }
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  if (is_mpi_up()) {
    int size = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > 1) MPI_Abort(MPI_COMM_WORLD, code);
  }
  _exit(code);
}

}  // namespace lockstep
