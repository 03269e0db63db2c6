// Task lists of small networks made of a layer that only has a shape and, if asked, a weight.
#include "graph/tasks.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace lockstep {
namespace {

class Plain final : public Layer {
 public:
  explicit Plain(bool has_weight) : has_weight_(has_weight) {}
  std::string kind() const override { return "plain"; }
  Shape output(Shapes in) const override { return in[0]; }
  std::vector<ParameterSpec> parameters() const override {
    if (!has_weight_) return {};
    ParameterSpec weight;
    weight.name = "weight", weight.shape = vector_shape(100), weight.file_shape = {100};
    return {weight};
  }
  Needs needs(DType, Shapes) const override { return {}; }
  bool can_repeat() const override { return has_weight_; }
  void forward(const Forward&) override {}
  void backward_input(const Backward&) override {}

 private:
  bool has_weight_;
};

/// in -> a -> b -> join(b, a) -> c, all but join with a weight: a has two consumers.
Graph residual_net() {
  Graph graph({4, 2, 2, 3});
  const auto append = [&](std::vector<Value> in, const std::string& name) { return graph.append<Plain>(in, name, !name.empty()); };
  const Value a = append({graph.input()}, "a"), b = append({a}, "b"), sum = append({b, a}, "");
  append({sum}, "c");
  return graph;
}

Parameters parameters_of(const Graph& graph) { return Parameters(finish_order(graph), {}, DType::f32); }

TEST(Tasks, EveryWeightIsWrittenBeforeItsBucketIsSummedAndEveryElementIsInOneBucket) {
  const Graph graph = residual_net();
  const Parameters parameters = parameters_of(graph);
  for (const std::int64_t bucket_bytes : {std::int64_t{1}, std::int64_t{600}, std::int64_t{1} << 20}) {
    const TaskList list = training_tasks(graph, parameters, bucket_bytes);
    std::set<std::string> written;
    std::int64_t summed = 0;
    for (const Task& task : list.tasks) {
      if (task.kind == TaskKind::backward_weight) written.insert(graph.nodes()[static_cast<std::size_t>(task.node)].name + ".weight");
      if (task.kind != TaskKind::all_reduce) continue;
      const Bucket& bucket = list.buckets[static_cast<std::size_t>(task.bucket)];
      EXPECT_EQ(bucket.begin, summed);
      summed = bucket.end;
      for (const Slice& slice : parameters.slices()) {
        const bool is_inside = slice.offset >= bucket.begin && slice.offset < bucket.end;
        EXPECT_TRUE(!is_inside || written.count(slice.spec.name)) << slice.spec.name;
      }
    }
    EXPECT_EQ(summed, parameters.elements() + 1) << "the count of non-finite losses ends the last bucket";
  }
}

TEST(Tasks, TheFirstConsumerWritesAGradientAndLaterOnesAdd) {
  const Graph graph = residual_net();
  const TaskList list = training_tasks(graph, parameters_of(graph), 1 << 20);
  std::map<int, int> writers;                         // value -> how often it was written
  std::map<int, std::size_t> last_change;
  for (std::size_t t = 0; t < list.tasks.size(); ++t) {
    const Task& task = list.tasks[t];
    if (task.kind != TaskKind::backward_input) continue;
    const Node& node = graph.nodes()[static_cast<std::size_t>(task.node)];
    EXPECT_TRUE(!last_change.count(node.out) || last_change[node.out] < t) << "read before it was complete";
    for (std::size_t i = 0; i < node.in.size(); ++i) {
      if (task.grad_modes[i] == GradMode::skip) continue;
      EXPECT_EQ(task.grad_modes[i] == GradMode::write, writers[node.in[i]] == 0);
      ++writers[node.in[i]];
      last_change[node.in[i]] = t;
    }
  }
  EXPECT_EQ(writers[1], 2) << "a is read by b and by the sum";
  EXPECT_EQ(writers.count(0), 0u) << "images need no gradient";
}

TEST(Tasks, WhatIsRepeatedIsMadeOnceAndBeforeAnyBackwardTaskThatReadsIt) {
  const Graph graph = residual_net();
  const Parameters parameters = parameters_of(graph);
  const TaskList kept = training_tasks(graph, parameters, 1 << 20), repeated = training_tasks(graph, parameters, 1 << 20, true);
  std::map<int, int> made;                            // value -> how often it was repeated
  std::vector<TaskKind> others;
  for (const Task& task : repeated.tasks) {
    if (task.kind == TaskKind::repeat) {
      ++made[graph.nodes()[static_cast<std::size_t>(task.node)].out];
      continue;
    }
    others.push_back(task.kind);
    if (task.kind != TaskKind::backward_input && task.kind != TaskKind::backward_weight) continue;
    for (const int in : graph.nodes()[static_cast<std::size_t>(task.node)].in)
      for (const Node& maker : graph.nodes())
        if (maker.out == in && maker.layer->can_repeat()) { EXPECT_EQ(made[in], 1) << "value " << in; }
  }
  EXPECT_EQ(made.size(), 2u) << "a and b; nobody reads c, and the sum cannot be repeated";
  std::vector<TaskKind> all;
  for (const Task& task : kept.tasks) all.push_back(task.kind);
  EXPECT_EQ(others, all);
}

TEST(Tasks, BelowFrozenWeightsNothingIsDifferentiatedOrSummed) {
  const Graph graph = residual_net();
  Parameters parameters = parameters_of(graph);
  for (Slice& slice : parameters.slices()) slice.is_frozen = slice.spec.name != "c.weight";
  const TaskList list = training_tasks(graph, parameters, 1 << 20);
  for (const Task& task : list.tasks) {
    EXPECT_TRUE(task.kind != TaskKind::backward_weight || graph.nodes()[static_cast<std::size_t>(task.node)].name == "c");
    EXPECT_NE(task.kind, TaskKind::backward_input);
  }
  std::int64_t summed = 0;
  for (const Bucket& bucket : list.buckets) summed += bucket.end - bucket.begin;
  EXPECT_EQ(summed, 128 + 1) << "c.weight, rounded up to 64 elements, and the count of non-finite losses";
}

}  // namespace
}  // namespace lockstep
