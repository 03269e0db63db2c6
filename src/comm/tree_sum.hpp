// tree_sum: the sum of an array over the ranks of a communicator, always added in the same order.
// In: each rank's array.  Out: the sum, in place, the same bits on every rank and in every run; neither length nor timing changes them.
// Order: let p be the largest power of two that is <= ranks.  The first 2 * (ranks - p) ranks are added in pairs (0 + 1, 2 + 3, ...),
// then the p numbers that are left in a perfect binary tree, neighbours first: 4 ranks (0 + 1) + (2 + 3), 6 ranks ((0+1) + (2+3)) + (4 + 5).
// Method: Rabenseifner 2004.  Long arrays are halved at distances 1, 2, 4, ... and gathered back; short ones are exchanged whole at the
// same distances, which adds in the same order.
#pragma once
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

/// Collective; T is float, double or std::int64_t.  scratch is kept by the caller between calls.  Throws Error if MPI fails.
template <class T>
void tree_sum(MPI_Comm comm, T* values, std::int64_t count, std::vector<std::byte>& scratch);

}  // namespace lockstep
