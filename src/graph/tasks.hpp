// tasks: a pure function from a graph to one list of training tasks, with streams and joins.
// In: the graph, which parameters are trained, the size of a bucket.  Out: what to enqueue, in order.
#pragma once
#include <cstdint>
#include <vector>

#include "graph/graph.hpp"

namespace lockstep {

enum class TaskKind { forward, repeat, backward_input, backward_weight, all_reduce };
constexpr const char* name_of(TaskKind kind) {
  constexpr const char* names[] = {"forward", "repeat", "backward_input", "backward_weight", "all_reduce"};
  return names[static_cast<int>(kind)];
}

struct Task {
  TaskKind kind;
  int node = -1;                         // of all but all_reduce
  int bucket = -1;                       // of all_reduce
  StreamId stream = StreamId::compute;
  std::vector<GradMode> grad_modes = {}; // backward_input: one an input
};

/// A slice of the flat gradient buffer that is summed over the ranks in one call.
struct Bucket {
  std::int64_t begin = 0, end = 0;       // elements
};

struct TaskList {
  /// A backward_weight runs on the side stream, beside what follows it: it waits for the compute tasks before it, and the compute stream for it
  /// before the next one.  An all_reduce waits for all tasks before it; the list's end joins all streams.
  std::vector<Task> tasks;
  std::vector<Bucket> buckets;
  std::vector<bool> needs_grad;          // one a value: something trained lies upstream of it
};

/// Specs in the order that backward finishes them: the nodes from last to first.
std::vector<ParameterSpec> finish_order(const Graph& graph);
/// Position in parameters.slices() of each of the graph's specs.
std::vector<int> slices_by_ordinal(const Parameters& parameters);
/// Buckets hold whole slices in finish order, at least bucket_bytes each but the last; frozen slices are in none.
/// The last one ends with the count of non-finite losses.
/// repeats: forward of a node whose layer can is repeated before the first backward task of those that read its output, which is not kept till then.
TaskList training_tasks(const Graph& graph, const Parameters& parameters, std::int64_t bucket_bytes, bool repeats = false);

}  // namespace lockstep
