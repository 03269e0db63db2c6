// exchange: the sums of a batch norm group by the group's own all-reduce, on the compute stream, where no direct way is.
#include "comm/exchange.hpp"

namespace lockstep {
namespace {

class GroupExchange final : public Exchange {
 public:
  GroupExchange(std::unique_ptr<Communicator> group, std::int64_t max_elements) : group_(std::move(group)), max_elements_(max_elements) {}

  void sum(Device& device, Tensor values) override {
    require_fits(values, max_elements_);
    if (group_->size() > 1) group_->all_reduce_sum(device, values, StreamId::compute);
  }
  bool is_recordable() const override { return group_->is_recordable(); }
  bool is_direct() const override { return false; }

 private:
  std::unique_ptr<Communicator> group_;
  std::int64_t max_elements_;
};

}  // namespace

void require_fits(Tensor values, std::int64_t max_elements) {
  if (values.dtype != DType::f32) fail_with(exit_internal, "exchange: ", name_of(values.dtype), "; it sums f32 only");
  if (values.size() > max_elements) fail_with(exit_internal, "exchange: ", values.size(), " values; it was made for at most ", max_elements);
}

std::unique_ptr<Exchange> make_exchange(Device& device, std::unique_ptr<Communicator> group, std::int64_t max_elements) {
  if (group->size() > 1 && !device.is_plan_only())
    if (std::unique_ptr<Exchange> direct = make_direct_exchange(device, group, max_elements)) return direct;
  return std::make_unique<GroupExchange>(std::move(group), max_elements);
}

}  // namespace lockstep
