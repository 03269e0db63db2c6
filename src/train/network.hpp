// network: a model with everything it needs to run: graph, parameters and their memory, executor, batch norm exchange.
// In: a resolved Config and the shape of a batch.  Used by training, evaluation and bench alike.
#pragma once
#include <memory>

#include "base/config.hpp"
#include "comm/communicator.hpp"
#include "comm/exchange.hpp"
#include "graph/executor.hpp"

namespace lockstep {

/// Bytes by use; what `check` prints before a job is queued.
struct MemoryUse {
  std::size_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0, input = 0, cache = 0;
  std::size_t total() const { return parameters + gradients + optimizer + activations + workspace + input + cache; }
};

class Network {
 public:
  /// images: [largest batch, h, w, c].  Collective when batch norm is synchronized.  Allocates nothing until allocate().
  Network(Device& device, Communicator& comm, const Config& config, const Shape& images);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  MemoryUse memory(const OptimizerConfig& optimizer) const;
  void allocate();
  /// Whether a step may be recorded: all its communication can be.
  bool is_recordable() const;

  const Graph& graph() const { return graph_; }
  Parameters& parameters() { return *parameters_; }
  const Parameters& parameters() const { return *parameters_; }
  Executor& executor() { return *executor_; }

 private:
  void make_executor(const Config& config);

  Device& device_;
  Communicator& comm_;
  Graph graph_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Executor> executor_;
  Allocation master_, compute_, grad_, running_, candidate_;
};

DType dtype_of(const std::string& precision);
/// Slices whose names match config.parameters and not config.except become frozen; Error for a pattern that matches nothing.
void freeze(Graph& graph, Parameters& parameters, const FreezeConfig& config);

}  // namespace lockstep
