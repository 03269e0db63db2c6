// mpi_check: MPI's status codes as exceptions, and an owner for its communicators.  Included in comm/ only.
#pragma once
#include <mpi.h>

#include <exception>
#include <source_location>

#include "base/error.hpp"

namespace lockstep {

/// Throws with the call site and MPI's own words.
inline void check_mpi(int status, std::source_location site = std::source_location::current()) {
  if (status == MPI_SUCCESS) return;
  char words[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(status, words, &length);
  fail_with(exit_internal, "MPI: ", words, " at ", site.file_name(), ":", site.line());
}

/// Between MPI_Init and MPI_Finalize.
inline bool is_mpi_up() {
  int begun = 0, ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  return begun && !ended;
}

/// A communicator whose faults come back as codes.  Freeing is collective, so while an exception unwinds this rank alone it is
/// left to the abort that follows.
class OwnedComm {
 public:
  explicit OwnedComm(MPI_Comm comm) : comm_(comm) { check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN)); }
  ~OwnedComm() {
    if (!is_unwinding() && is_mpi_up()) MPI_Comm_free(&comm_);
  }
  OwnedComm(const OwnedComm&) = delete;
  OwnedComm& operator=(const OwnedComm&) = delete;
  MPI_Comm get() const { return comm_; }
  bool is_unwinding() const { return std::uncaught_exceptions() > exceptions_at_birth_; }

  static MPI_Comm duplicate(MPI_Comm of) {
    MPI_Comm made = MPI_COMM_NULL;
    check_mpi(MPI_Comm_dup(of, &made));
    return made;
  }

 private:
  MPI_Comm comm_;
  int exceptions_at_birth_ = std::uncaught_exceptions();
};

}  // namespace lockstep
