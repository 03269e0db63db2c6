// predictor: images in host memory -> what a network says of them, batch by batch.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "data/augment.hpp"
#include "images/codec.hpp"
#include "train/network.hpp"
#include "train/run_plan.hpp"
#include "train/step_inputs.hpp"

namespace lockstep {

class Predictor {
 public:
  /// stored: as an evaluation of these images would have them (0 x 0: each of its own size).
  Predictor(Device& device, Network& network, const RunPlan& plan, const ShardHeader& stored);
  /// Logits [count, outputs], of at most plan.eval_batch images.  Waits for the device.
  std::vector<float> logits(std::span<const DecodedImage> images);

 private:
  Device& device_;
  Executor& executor_;
  Augment augment_;
  StepInputsFeed feed_;
  Allocation cuts_, pixels_;             // device; pixels_ grows with the largest batch
};

}  // namespace lockstep
