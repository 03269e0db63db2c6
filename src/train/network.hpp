// network: a model with everything it needs to run: graph, parameters and their memory, executor, batch norm exchange.
// In: a resolved Config and the shape of a batch.  Refuses, with the plan's numbers, what its device has no room for.  Used by training, evaluation and bench alike.
#pragma once
#include <memory>

#include "base/config.hpp"
#include "comm/communicator.hpp"
#include "comm/exchange.hpp"
#include "graph/executor.hpp"
#include "train/memory.hpp"

namespace lockstep {

class Network {
 public:
  /// images: [largest batch, h, w, c].  Collective, unless the device only plans and has no limit.  Allocates nothing until allocate().
  /// Error where not even the least that it and what stands beside it need fits into the device's memory.
  Network(Device& device, Communicator& comm, const Config& config, const Shape& images, const MemoryBeside& beside = {});
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// What `check` prints: of the network, its optimizer and what stands beside it.
  MemoryUse memory() const;
  /// Collective.  Error where it does not fit.
  void allocate();
  /// Whether a step may be recorded: all its communication can be.
  bool is_recordable() const;

  const Graph& graph() const { return graph_; }
  Parameters& parameters() { return *parameters_; }
  const Parameters& parameters() const { return *parameters_; }
  Executor& executor() { return *executor_; }
  const Executor& executor() const { return *executor_; }

 private:
  void make_executor();
  bool knows_room() const { return device_.limit_bytes() > 0 || device_.free_bytes() > 0; }
  std::size_t room() const;
  /// A plan without a device, of a configuration like this one's.
  MemoryUse planned(bool repeats, std::int64_t images) const;
  void require_room(const MemoryUse& use);

  Device& device_;
  Communicator& comm_;
  Config config_;
  MemoryBeside beside_;
  bool is_workspace_known_ = true;
  bool repeats_ = false;                 // graph.recompute, decided
  Graph graph_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Executor> executor_;
  Allocation master_, compute_, grad_, running_, candidate_;
};

DType dtype_of(const std::string& precision);
/// Gives the slices their factors by optimizer.rate_parameters; Error for a pattern that matches nothing.
void scale_rates(Parameters& parameters, const OptimizerConfig& config);
/// Slices whose names match config.parameters and not config.except become frozen; Error for a pattern that matches nothing.
void freeze(Graph& graph, Parameters& parameters, const FreezeConfig& config);

}  // namespace lockstep
