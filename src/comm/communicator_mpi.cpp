// communicator_mpi: ranks that sum in host memory over MPI.  A GPU's buffers are copied to the host and back.
#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <numeric>

#include "comm/communicator.hpp"
#include "comm/mpi_check.hpp"
#include "comm/tree_sum.hpp"

namespace lockstep {
namespace {

class MpiCommunicator final : public Communicator {
 public:
  /// Takes comm.  calls: see count_calls.
  MpiCommunicator(MPI_Comm comm, std::atomic<std::int64_t>* calls) : comm_(comm), calls_(calls) {
    check_mpi(MPI_Comm_rank(comm, &rank_));
    check_mpi(MPI_Comm_size(comm, &size_));
    MPI_Comm host = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host));
    check_mpi(MPI_Comm_rank(host, &local_rank_));
    check_mpi(MPI_Comm_size(host, &local_size_));
    check_mpi(MPI_Comm_free(&host));
  }
  ~MpiCommunicator() override {
    if (agreement_ != MPI_REQUEST_NULL && !comm_.is_unwinding() && is_mpi_up()) MPI_Wait(&agreement_, MPI_STATUS_IGNORE);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }

  Allocation allocate(Device& device, std::size_t bytes) override { return device.allocate(bytes); }

  void all_reduce_sum(Device& device, Tensor buffer, StreamId stream) override {
    enter();
    if (buffer.dtype != DType::f32) fail_with(exit_internal, "all_reduce_sum: ", name_of(buffer.dtype), "; it sums f32 only");
    if (size_ == 1 || buffer.size() == 0) return;
    if (device.is_host())
      tree_sum(comm_.get(), buffer.as<float>(), buffer.size(), scratch_);
    else
      all_reduce_staged(device, buffer, stream);
  }
  bool is_recordable() const override { return is_host_build() || size_ == 1; }

  void broadcast(void* data, std::size_t bytes, int root) override {
    enter();
    char* at = static_cast<char*>(data);
    for (std::size_t done = 0; done < bytes;) {
      const int part = static_cast<int>(std::min<std::size_t>(bytes - done, 1 << 30));  // MPI counts in int
      check_mpi(MPI_Bcast(at + done, part, MPI_BYTE, root, comm_.get()));
      done += static_cast<std::size_t>(part);
    }
  }

  double sum(double value) override {
    sum(std::span(&value, 1));
    return value;
  }
  void sum(std::span<double> values) override {
    enter();
    tree_sum(comm_.get(), values.data(), std::ssize(values), scratch_);
  }
  void sum(std::span<std::int64_t> values) override {
    enter();
    tree_sum(comm_.get(), values.data(), std::ssize(values), scratch_);
  }
  std::int64_t max(std::int64_t value) override { return reduce(value, MPI_MAX); }
  std::int64_t min(std::int64_t value) override { return reduce(value, MPI_MIN); }

  std::vector<std::string> gather(const std::string& text) override {
    enter();
    const bool is_root = rank_ == 0;
    require_short(text.size());
    const int length = static_cast<int>(text.size());
    std::vector<int> lengths(is_root ? static_cast<std::size_t>(size_) : 0), starts(lengths.size());
    check_mpi(MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, comm_.get()));
    const std::int64_t all = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    require_short(static_cast<std::size_t>(all));
    std::exclusive_scan(lengths.begin(), lengths.end(), starts.begin(), 0);
    std::string joined(static_cast<std::size_t>(all), '\0');
    check_mpi(MPI_Gatherv(text.data(), length, MPI_CHAR, joined.data(), lengths.data(), starts.data(), MPI_CHAR, 0, comm_.get()));
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < lengths.size(); ++r)
      texts.push_back(joined.substr(static_cast<std::size_t>(starts[r]), static_cast<std::size_t>(lengths[r])));
    return texts;
  }

  std::string broadcast(const std::string& text, int root) override {
    std::uint64_t length = text.size();
    broadcast(&length, sizeof length, root);
    std::string result = rank_ == root ? text : std::string(length, '\0');
    broadcast(result.data(), length, root);
    return result;
  }

  void barrier() override {
    enter();
    check_mpi(MPI_Barrier(comm_.get()));
  }

  void start_agree(int value) override {
    enter();
    if (agreement_ != MPI_REQUEST_NULL) fail_with(exit_internal, "start_agree: the last agreement was not finished");
    proposed_ = value;
    check_mpi(MPI_Iallreduce(&proposed_, &agreed_, 1, MPI_INT, MPI_MAX, comm_.get(), &agreement_));
  }
  int finish_agree() override {
    enter();
    if (agreement_ == MPI_REQUEST_NULL) fail_with(exit_internal, "finish_agree: no agreement was started");
    check_mpi(MPI_Wait(&agreement_, MPI_STATUS_IGNORE));
    return agreed_;
  }

  std::unique_ptr<Communicator> split(int group) override {
    enter();
    require(group >= 0 && (group == 0 || size_ % group == 0), "a group of ", group, " ranks does not divide the ", size_,
            " ranks of this run. Choose a group (model.sync_bn_group) that divides the ranks, or 0 for all of them.");
    MPI_Comm made = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(comm_.get(), group == 0 ? 0 : rank_ / group, rank_, &made));
    return std::make_unique<MpiCommunicator>(made, calls_);
  }

  void count_calls(std::atomic<std::int64_t>* calls) override { calls_ = calls; }

 private:
  void enter() {
    if (calls_) calls_->fetch_add(1, std::memory_order_relaxed);
  }

  std::int64_t reduce(std::int64_t value, MPI_Op op) {
    enter();
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, op, comm_.get()));
    return value;
  }

  /// The copies follow the stream's order; each stream has its own host buffer, since the copy back may still run when the next call comes.
  void all_reduce_staged(Device& device, Tensor buffer, StreamId stream) {
    Allocation& host = staging_.at(static_cast<std::size_t>(stream));
    if (host.bytes() < buffer.bytes()) host = device.allocate_pinned(buffer.bytes());
    const StreamId before = device.current();
    device.use(stream);
    device.copy_to_host(host.data(), buffer.data, buffer.bytes());
    tree_sum(comm_.get(), static_cast<float*>(host.data()), buffer.size(), scratch_);
    device.copy_to_device(buffer.data, host.data(), buffer.bytes(), stream);
    device.use(before);
  }

  static void require_short(std::size_t bytes) {
    if (bytes > INT_MAX) fail_with(exit_internal, "gather: ", bytes, " bytes of text; at most ", INT_MAX, " fit");
  }

  OwnedComm comm_;
  std::atomic<std::int64_t>* calls_;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::vector<std::byte> scratch_;
  std::array<Allocation, 3> staging_;
  int proposed_ = 0, agreed_ = 0;
  MPI_Request agreement_ = MPI_REQUEST_NULL;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator() {
  return std::make_unique<MpiCommunicator>(OwnedComm::duplicate(MPI_COMM_WORLD), nullptr);
}

}  // namespace lockstep
