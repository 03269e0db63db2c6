// evaluate: exact evaluation.  Every image of the split exactly once, for any ranks and batch; sums and counts are reduced, never means of means.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"
#include "data/loader.hpp"
#include "storage/shards.hpp"
#include "train/evaluation.hpp"
#include "train/network.hpp"
#include "train/run_plan.hpp"
#include "train/step_inputs.hpp"

namespace lockstep {

class Evaluator {
 public:
  Evaluator(Device& device, Communicator& comm, Network& network, const Dataset& dataset, const RunPlan& plan, Progress& progress);
  /// Once, by run() where nobody else did: starts the readers and, on a GPU, records an evaluation of each size of batch, on blank images.
  void prepare();
  /// Collective.  Uses the network's running statistics as they are.  is_stopping is asked between batches, by all ranks equally often;
  /// when it says yes the evaluation is given up and nothing is returned.
  std::optional<Evaluation> run(const std::function<bool()>& is_stopping);

 private:
  void enqueue(const Slot& slot);

  Device& device_;
  Communicator& comm_;
  Network& network_;
  const Dataset& dataset_;
  const RunPlan& plan_;
  Progress& progress_;
  Augment augment_;
  StepInputsFeed feed_;
  Flight flight_;
  std::int64_t batches_ = 0;             // of one pass, equal on all ranks
  Allocation predictions_;               // device, Prediction [this rank's images of one pass]
  std::unique_ptr<ImageCache> cache_;    // null: images are read batch by batch
  std::unique_ptr<Loader> loader_;       // pass after pass: the next one's first batches have been read when it begins
  std::map<std::pair<std::int64_t, const Cut*>, std::unique_ptr<Replay>> recordings_;   // by count and slot; empty: batches are enqueued layer by layer
};

}  // namespace lockstep
