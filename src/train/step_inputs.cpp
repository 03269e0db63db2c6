#include "train/step_inputs.hpp"

namespace lockstep {

StepInputsFeed::StepInputsFeed(Device& device) : device_(device), ring_(device.allocate_pinned(in_flight * sizeof(StepInputs))) {}

void StepInputsFeed::publish(const StepInputs& inputs, StepState* state) {
  StepInputs* slot = static_cast<StepInputs*>(ring_.data()) + next_++ % in_flight;
  *slot = inputs;
  device_.copy_to_device(static_cast<StepInputs*>(state), slot, sizeof(StepInputs));
}

}  // namespace lockstep
