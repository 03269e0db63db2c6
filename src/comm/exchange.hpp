// exchange: sums a few KB over a batch norm group, on the compute stream.
#pragma once
#include <memory>

#include "comm/communicator.hpp"

namespace lockstep {

class Exchange {
 public:
  virtual ~Exchange() = default;
  /// values = sum over the group, in place, the same bits on every rank of it.  f32, at most max_elements.  Collective in the group.
  virtual void sum(Device& device, Tensor values) = 0;
  virtual bool is_recordable() const = 0;
};

/// group: as made by Communicator::split.  A group of one rank: sum does nothing.
std::unique_ptr<Exchange> make_exchange(Device& device, std::unique_ptr<Communicator> group, std::int64_t max_elements);

}  // namespace lockstep
