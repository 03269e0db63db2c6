// exchange: sums a few KB over a batch norm group, on the compute stream.
#pragma once
#include <memory>
#include <string>

#include "comm/communicator.hpp"

namespace lockstep {

class Exchange {
 public:
  virtual ~Exchange() = default;
  /// values = sum over the group, in place, the same bits on every rank of it.  f32, at most max_elements.  Collective in the group.
  virtual void sum(Device& device, Tensor values) = 0;
  virtual bool is_recordable() const = 0;
  /// Whether GPUs write to each other's memory; else the group's all-reduce sums.
  virtual bool is_direct() const = 0;
};

/// group: as made by Communicator::split.  A group of one rank: sum does nothing.  Direct where every rank of the group can; all take the same way.
std::unique_ptr<Exchange> make_exchange(Device& device, std::unique_ptr<Communicator> group, std::int64_t max_elements);

/// The direct one (exchange_cuda.cpp), which takes the group; nothing on all ranks, and the group stays, where one of them cannot.  Collective.
std::unique_ptr<Exchange> make_direct_exchange(Device& device, std::unique_ptr<Communicator>& group, std::int64_t max_elements);
/// For all exchanges.
void require_fits(Tensor values, std::int64_t max_elements);

}  // namespace lockstep
