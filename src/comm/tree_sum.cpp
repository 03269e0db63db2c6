#include "comm/tree_sum.hpp"

#include <algorithm>

#include "comm/mpi_check.hpp"

namespace lockstep {
namespace {

constexpr int tag = 1;
constexpr int window = 4;                                   // segments in flight: MPI copies some while others are added
constexpr std::size_t segment_bytes = 128 << 10;            // the window stays in a core's cache
constexpr std::size_t short_bytes = 16 << 10;               // below this a round trip costs more than the extra bytes

MPI_Datatype mpi_type(float) { return MPI_FLOAT; }
MPI_Datatype mpi_type(double) { return MPI_DOUBLE; }
MPI_Datatype mpi_type(std::int64_t) { return MPI_INT64_T; }

template <class T>
struct Slice {
  T* data;
  std::int64_t count;
  Slice part(std::int64_t low, std::int64_t high) const { return {data + low, high - low}; }
};

/// One rank's side of the sum.
template <class T>
class TreeSum {
 public:
  TreeSum(MPI_Comm comm, std::vector<std::byte>& scratch) : comm_(comm) {
    check_mpi(MPI_Comm_rank(comm, &rank_));
    check_mpi(MPI_Comm_size(comm, &size_));
    scratch.resize(window * segment_bytes);
    scratch_ = reinterpret_cast<T*>(scratch.data());
  }

  void run(Slice<T> values) {
    if (size_ == 1 || values.count == 0) return;
    int leaves = 1;
    while (2 * leaves <= size_) leaves *= 2;
    const int paired = 2 * (size_ - leaves);                // ranks whose first sum is with their neighbour
    if (rank_ < paired && rank_ % 2 == 1) {                 // the odd one hands over, and gets the result
      trade(rank_ - 1, values, {}, true);
      trade(rank_ - 1, {}, values, false);
      return;
    }
    if (rank_ < paired) trade(rank_ + 1, {}, values, true);
    const int leaf = rank_ < paired ? rank_ / 2 : rank_ - paired / 2;
    const auto rank_of = [&](int l) { return 2 * l < paired ? 2 * l : l + paired / 2; };
    if (static_cast<std::size_t>(values.count) * sizeof(T) <= short_bytes)
      for (int distance = 1; distance < leaves; distance *= 2) add_whole(rank_of(leaf ^ distance), values);
    else
      halve(values, leaf, leaves, 1, rank_of);
    if (rank_ < paired) trade(rank_ + 1, values, {}, false);
  }

 private:
  /// Both keep the sum of all of it.
  void add_whole(int peer, Slice<T> values) {
    const int count = static_cast<int>(values.count);
    check_mpi(MPI_Sendrecv(values.data, count, mpi_type(T{}), peer, tag, scratch_, count, mpi_type(T{}), peer, tag, comm_, MPI_STATUS_IGNORE));
    add(values.data, scratch_, values.count);
  }

  /// Leaves at this distance each sum one half, go on with it, and give each other the result.
  template <class RankOf>
  void halve(Slice<T> values, int leaf, int leaves, int distance, const RankOf& rank_of) {
    if (distance == leaves) return;
    const int peer = rank_of(leaf ^ distance);
    const std::int64_t middle = values.count / 2;
    Slice<T> mine = values.part(0, middle), other = values.part(middle, values.count);
    if (leaf & distance) std::swap(mine, other);
    trade(peer, other, mine, true);
    halve(mine, leaf, leaves, 2 * distance, rank_of);
    trade(peer, mine, other, false);
  }

  /// Sends `out` to the peer while its answer is added to `in`, or written over it; segment by segment.
  void trade(int peer, Slice<T> out, Slice<T> in, bool adds) {
    constexpr std::int64_t length = segment_bytes / sizeof(T);
    const auto segment = [](Slice<T> s, std::int64_t k) { return s.part(k * length, std::min((k + 1) * length, s.count)); };
    const auto segments = [](Slice<T> s) { return (s.count + length - 1) / length; };
    const std::int64_t last = std::max(segments(out), segments(in));
    MPI_Request sends[window], receives[window];
    std::fill_n(sends, window, MPI_REQUEST_NULL);
    std::fill_n(receives, window, MPI_REQUEST_NULL);
    const auto start = [&](std::int64_t k) {
      if (k < segments(in)) {
        const Slice<T> s = segment(in, k);
        T* to = adds ? scratch_ + (k % window) * length : s.data;
        check_mpi(MPI_Irecv(to, static_cast<int>(s.count), mpi_type(T{}), peer, tag, comm_, &receives[k % window]));
      }
      if (k < segments(out)) {
        const Slice<T> s = segment(out, k);
        check_mpi(MPI_Isend(s.data, static_cast<int>(s.count), mpi_type(T{}), peer, tag, comm_, &sends[k % window]));
      }
    };
    for (std::int64_t k = 0; k < std::min<std::int64_t>(window, last); ++k) start(k);
    for (std::int64_t k = 0; k < last; ++k) {
      check_mpi(MPI_Wait(&receives[k % window], MPI_STATUS_IGNORE));
      if (adds && k < segments(in)) add(segment(in, k).data, scratch_ + (k % window) * length, segment(in, k).count);
      check_mpi(MPI_Wait(&sends[k % window], MPI_STATUS_IGNORE));
      if (k + window < last) start(k + window);
    }
  }

  /// Which operand comes first does not matter to the bits: IEEE addition commutes.
  static void add(T* __restrict sum, const T* __restrict term, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) sum[i] += term[i];
  }

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  T* scratch_;
};

}  // namespace

template <class T>
void tree_sum(MPI_Comm comm, T* values, std::int64_t count, std::vector<std::byte>& scratch) {
  TreeSum<T>(comm, scratch).run({values, count});
}
template void tree_sum(MPI_Comm, float*, std::int64_t, std::vector<std::byte>&);
template void tree_sum(MPI_Comm, double*, std::int64_t, std::vector<std::byte>&);
template void tree_sum(MPI_Comm, std::int64_t*, std::int64_t, std::vector<std::byte>&);

}  // namespace lockstep
