// step_inputs: what changes from step to step, on its way into device memory.
#pragma once
#include <cstddef>

#include "graph/graph.hpp"
#include "tensor/device.hpp"

namespace lockstep {

class StepInputsFeed {
 public:
  explicit StepInputsFeed(Device& device);
  /// Queues the copy into *state, beside which the optimizer's own fields stay as they are.  Call at most `in_flight` times
  /// between two points where the host has waited for the device.
  void publish(const StepInputs& inputs, StepState* state);

 private:
  static constexpr std::size_t in_flight = 16384;   // two steps of 4096 micro-batches, twice over
  Device& device_;
  Allocation ring_;                                  // pinned; a slot is written again only after in_flight others
  std::size_t next_ = 0;
};

}  // namespace lockstep
