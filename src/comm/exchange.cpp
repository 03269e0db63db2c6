// exchange: the sums of a batch norm group by the group's own all-reduce, on the compute stream.
#include "comm/exchange.hpp"

namespace lockstep {
namespace {

class GroupExchange final : public Exchange {
 public:
  GroupExchange(std::unique_ptr<Communicator> group, std::int64_t max_elements) : group_(std::move(group)), max_elements_(max_elements) {}

  void sum(Device& device, Tensor values) override {
    if (values.size() > max_elements_)
      fail_with(exit_internal, "exchange: ", values.size(), " values; it was made for at most ", max_elements_);
    if (group_->size() > 1) group_->all_reduce_sum(device, values, StreamId::compute);
  }
  bool is_recordable() const override { return group_->is_recordable(); }

 private:
  std::unique_ptr<Communicator> group_;
  std::int64_t max_elements_;
};

}  // namespace

std::unique_ptr<Exchange> make_exchange(Device&, std::unique_ptr<Communicator> group, std::int64_t max_elements) {
  return std::make_unique<GroupExchange>(std::move(group), max_elements);
}

}  // namespace lockstep
