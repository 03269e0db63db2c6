// exchange_mpi: the sums of a batch norm group by the group's own all-reduce, which adds in rank order whatever the length.
#include "comm/exchange.hpp"

namespace lockstep {
namespace {

class MpiExchange final : public Exchange {
 public:
  MpiExchange(const Device& device, std::unique_ptr<Communicator> group, std::int64_t max_elements)
      : group_(std::move(group)), max_elements_(max_elements), is_host_(device.is_host()) {}

  void sum(Device& device, Tensor values) override {
    if (values.size() > max_elements_)
      fail_with(exit_internal, "exchange: ", values.size(), " values; it was made for at most ", max_elements_);
    if (group_->size() > 1) group_->all_reduce_sum(device, values, StreamId::compute);
  }
  bool is_recordable() const override { return is_host_ || group_->size() == 1; }

 private:
  std::unique_ptr<Communicator> group_;
  std::int64_t max_elements_;
  bool is_host_;                                            // on a GPU the sums pass through host memory: not recordable
};

}  // namespace

std::unique_ptr<Exchange> make_exchange(Device& device, std::unique_ptr<Communicator> group, std::int64_t max_elements) {
  return std::make_unique<MpiExchange>(device, std::move(group), max_elements);
}

}  // namespace lockstep
