// executor: enqueues a task list on the device's streams.  Knows neither recording nor optimizer.
// In: a graph, parameters, a communicator.  Owns the arena that holds activations, gradients of activations and scratch.
#pragma once
#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "graph/graph.hpp"
#include "graph/planner.hpp"
#include "graph/tasks.hpp"

namespace lockstep {

/// Memory by use, before anything is allocated.
struct MemoryPlan {
  std::size_t arena = 0, workspace = 0;
};

class Executor {
 public:
  struct Context {
    Device& device;
    ConvSetting convolutions;
    Communicator& comm;                  // gradients
    Exchange* exchange;                  // batch norm; null: local
    DType dtype;
    std::int64_t bucket_bytes;
    bool overlaps = true;                // gradients of weights run beside those of activations, on a GPU
    bool repeats = false;                // outputs of layers that can are computed again in the backward pass, not kept
  };
  /// Prepares the layers and plans; allocates nothing until allocate(), so the device may be one that plans only.
  Executor(Graph& graph, Parameters& parameters, const Context& context);
  ~Executor();
  MemoryPlan memory() const;
  void allocate();

  Tensor input() const;                  // compute type [largest batch, h, w, channels >= c, those from c on zero]; filled by augment
  Tensor labels() const;                 // i32 [largest batch]
  Tensor logits(std::int64_t count) const;  // what the loss read, after an evaluation
  StepState* step_state() const;         // device memory
  MetricSums* metrics() const;           // device memory
  Prediction* predictions() const;       // device memory [largest batch]

  /// Forward and backward of `count` local images (0: collectives alone).  is_first: gradients are written, else added;
  /// is_last: gradients are summed over the ranks.
  /// timeline: marked after each layer's calls with "kind direction name"; null: nothing is timed.
  /// has_ranges: profilers see each layer's calls under that name, and "all_reduce BUCKET".
  void enqueue_training(std::int64_t count, bool is_first, bool is_last, Timeline* timeline = nullptr, bool has_ranges = false);
  void enqueue_evaluation(std::int64_t count);
  const TaskList& tasks() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
