// snapshot: the state of all ranks <-> one TrainingState on rank 0.  Collective.
#pragma once
#include "comm/communicator.hpp"
#include "optim/optimizer.hpp"
#include "train/checkpoint.hpp"
#include "train/network.hpp"

namespace lockstep {

/// Ranks whose batch norm statistics are one: with local batch norm a rank, else the synchronized group.
int ranks_per_statistics(const ModelConfig& model, int world);

/// Copies weights, moments and every group's running statistics to rank 0; other ranks get the progress alone.  Waits for the device.
TrainingState take_snapshot(Device& device, Communicator& comm, const Network& network, const Optimizer& optimizer, const RunProgress& progress, int group);
/// This rank's weights and running statistics alone.  Waits for the device.
TrainingState weights_of(Device& device, const Network& network);
/// Hands rank 0's weights and the run's running statistics to all; sets state.progress on every rank.
void restore_weights(Device& device, Communicator& comm, Network& network, TrainingState& state);
/// Hands all of rank 0's state out: weights and moments to all, running statistics to each group (all from rank 0's when the groups have changed).
void restore_snapshot(Device& device, Communicator& comm, Network& network, Optimizer& optimizer, TrainingState& state, int group);

/// While it lives, the network's running statistics are rank 0's, as evaluation wants them; then this rank's own again.
class RankZeroStatistics {
 public:
  RankZeroStatistics(Device& device, Communicator& comm, Network& network);
  ~RankZeroStatistics();
  RankZeroStatistics(const RankZeroStatistics&) = delete;
  RankZeroStatistics& operator=(const RankZeroStatistics&) = delete;

 private:
  Device& device_;
  Network& network_;
  std::vector<float> own_;
};

}  // namespace lockstep
