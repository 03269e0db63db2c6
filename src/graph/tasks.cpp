#include "graph/tasks.hpp"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

/// The gradient of a value is needed when something trained lies at or above the node that made it.
std::vector<bool> values_that_need_grad(const Graph& graph, const std::vector<bool>& node_is_trained) {
  std::vector<bool> needs(static_cast<std::size_t>(graph.value_count()), false);
  const auto nodes = graph.nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    bool any = node_is_trained[i];
    for (const int in : nodes[i].in) any = any || needs[static_cast<std::size_t>(in)];
    needs[static_cast<std::size_t>(nodes[i].out)] = any;
  }
  return needs;
}

struct BucketPlan {
  std::vector<Bucket> buckets;
  std::vector<int> last_slice;           // of each bucket: its sum starts when this one is written; -1: the losses alone
};

BucketPlan plan_buckets(const Parameters& parameters, std::int64_t bucket_bytes) {
  BucketPlan plan;
  const auto slices = parameters.slices();
  bool is_open = false;
  for (std::size_t s = 0; s < slices.size(); ++s) {
    const std::int64_t end = s + 1 < slices.size() ? slices[s + 1].offset : parameters.elements();
    if (slices[s].is_frozen) {
      is_open = false;
      continue;
    }
    if (!is_open) {
      plan.buckets.push_back({slices[s].offset, end});
      plan.last_slice.push_back(static_cast<int>(s));
    }
    plan.buckets.back().end = end;
    plan.last_slice.back() = static_cast<int>(s);
    is_open = (end - plan.buckets.back().begin) * 4 < bucket_bytes;
  }
  if (!plan.buckets.empty() && plan.buckets.back().end == parameters.elements()) {
    plan.buckets.back().end += 1;
  } else {
    plan.buckets.push_back({parameters.elements(), parameters.elements() + 1});
    plan.last_slice.push_back(-1);
  }
  return plan;
}

}  // namespace

std::vector<ParameterSpec> finish_order(const Graph& graph) {
  std::vector<ParameterSpec> specs;
  const auto nodes = graph.nodes();
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node)
    for (const int ordinal : node->parameters) specs.push_back(graph.parameter_specs()[static_cast<std::size_t>(ordinal)]);
  return specs;
}

std::vector<int> slices_by_ordinal(const Parameters& parameters) {
  std::vector<int> slice_of(parameters.slices().size());
  for (std::size_t s = 0; s < slice_of.size(); ++s)
    slice_of[static_cast<std::size_t>(parameters.slices()[s].spec.ordinal)] = static_cast<int>(s);
  return slice_of;
}

TaskList training_tasks(const Graph& graph, const Parameters& parameters, std::int64_t bucket_bytes, bool repeats) {
  const auto nodes = graph.nodes();
  const auto slices = parameters.slices();
  const std::vector<int> slice_of = slices_by_ordinal(parameters);
  const BucketPlan buckets = plan_buckets(parameters, bucket_bytes);

  std::vector<bool> node_is_trained(nodes.size(), false);
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const int ordinal : nodes[i].parameters)
      if (!slices[static_cast<std::size_t>(slice_of[static_cast<std::size_t>(ordinal)])].is_frozen) node_is_trained[i] = true;

  TaskList list;
  list.buckets = buckets.buckets;
  list.needs_grad = values_that_need_grad(graph, node_is_trained);
  for (std::size_t i = 0; i < nodes.size(); ++i) list.tasks.push_back({.kind = TaskKind::forward, .node = static_cast<int>(i)});

  std::vector<int> repeated_by(list.needs_grad.size(), -1);    // the node whose output it is, and that has still to be repeated
  if (repeats)
    for (std::size_t i = 0; i < nodes.size(); ++i)
      if (nodes[i].layer->can_repeat()) repeated_by[static_cast<std::size_t>(nodes[i].out)] = static_cast<int>(i);

  std::vector<bool> has_grad(list.needs_grad.size(), false);   // written by a consumer that comes later in the network
  std::size_t next_bucket = 0;
  const auto start_sums = [&](int finished_slice) {
    while (next_bucket < buckets.buckets.size() && buckets.last_slice[next_bucket] <= finished_slice) {
      list.tasks.push_back({.kind = TaskKind::all_reduce, .bucket = static_cast<int>(next_bucket), .stream = StreamId::comm});
      ++next_bucket;
    }
  };
  for (std::size_t back = nodes.size(); back-- > 0;) {
    const Node& node = nodes[back];
    if (list.needs_grad[static_cast<std::size_t>(node.out)]) {
      for (const int in : node.in)
        if (int& by = repeated_by[static_cast<std::size_t>(in)]; by >= 0) list.tasks.push_back({.kind = TaskKind::repeat, .node = std::exchange(by, -1)});
      Task task{.kind = TaskKind::backward_input, .node = static_cast<int>(back)};
      bool is_needed = node_is_trained[back] && node.layer->is_normalization();   // its weights' gradients come from the same pass
      for (const int in : node.in) {
        const auto v = static_cast<std::size_t>(in);
        if (!list.needs_grad[v]) {
          task.grad_modes.push_back(GradMode::skip);
          continue;
        }
        task.grad_modes.push_back(has_grad[v] ? GradMode::add : GradMode::write);
        has_grad[v] = true;
        is_needed = true;
      }
      if (node_is_trained[back] && !node.layer->is_normalization())
        list.tasks.push_back({.kind = TaskKind::backward_weight, .node = static_cast<int>(back), .stream = StreamId::side});
      if (is_needed) list.tasks.push_back(std::move(task));
    }
    int finished = -1;
    for (const int ordinal : node.parameters) finished = std::max(finished, slice_of[static_cast<std::size_t>(ordinal)]);
    if (finished >= 0) start_sums(finished);
  }
  start_sums(static_cast<int>(slices.size()));
  return list;
}

}  // namespace lockstep
