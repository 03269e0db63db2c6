#include "graph/executor.hpp"

#include <algorithm>
#include <numeric>

namespace lockstep {
namespace {

/// Where things live in the arena: offsets of values, of repeated ones in backward, of values' gradients, of what layers save, and of values' sums, by
/// index.
struct Layout {
  std::vector<std::size_t> value, kept, grad, saved, sums;
  std::size_t arena_bytes = 0;
};

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Values and gradients that share memory have one root: values by their number, then gradients.
struct Roots {
  explicit Roots(int values) : count(values), of(2 * at(values)) { std::iota(of.begin(), of.end(), 0); }
  std::size_t value(int v) const { return root(v); }
  std::size_t grad(int v) const { return root(count + v); }
  std::size_t root(int i) const {
    while (of[at(i)] != i) i = of[at(i)];
    return at(i);
  }
  int count;
  std::vector<int> of;
};

}  // namespace

struct Executor::State {
  State(Graph& g, Parameters& p, const Context& c) : graph(g), parameters(p), context(c), input_channels(g.shape(0).c) {}

  Graph& graph;
  Parameters& parameters;
  Context context;
  std::int64_t input_channels;           // that value 0 is stored with
  TaskList list;
  std::vector<Needs> needs;
  std::vector<int> slice_of;
  std::vector<int> sums_from;            // the node that may write each value's sums for the one that reads it; -1: nobody takes them
  std::vector<std::int64_t> most_parts;  // of each value's sums
  Layout layout;
  std::size_t workspace_bytes = 0, side_workspace_bytes = 0;
  Allocation arena, workspace, side_workspace, labels, step, metrics, predictions;

  std::int64_t largest_batch() const { return graph.shape(0).n; }
  Shape shape(int v) const {
    Shape s = graph.shape(v);
    if (v == 0) s.c = input_channels;
    return s;
  }
  std::vector<Shape> input_shapes(const Node& node) const {
    std::vector<Shape> shapes;
    for (const int in : node.in) shapes.push_back(shape(in));
    return shapes;
  }
  std::size_t value_bytes(int v) const { return static_cast<std::size_t>(shape(v).size()) * size_of(context.dtype); }

  std::int64_t best_input_channels() const;
  Roots share_memory() const;
  int end_of_side_task(std::size_t t) const;
  void plan();

  Tensor in_arena(std::size_t offset, const Shape& shape, DType dtype) const {
    return {static_cast<char*>(arena.data()) + offset, shape, dtype};
  }
  Tensor value(int v, std::int64_t count) const { return in_arena(layout.value[at(v)], shape(v).with_batch(count), context.dtype); }
  /// What backward reads.
  Tensor kept(int v, std::int64_t count) const { return in_arena(layout.kept[at(v)], shape(v).with_batch(count), context.dtype); }
  Tensor grad(int v, std::int64_t count) const { return in_arena(layout.grad[at(v)], graph.shape(v).with_batch(count), context.dtype); }
  Tensor saved(int node) const { return in_arena(layout.saved[at(node)], vector_shape(static_cast<std::int64_t>(needs[at(node)].saved_bytes)), DType::u8); }
  /// Of a value whose sums one layer takes and another writes for so many images; else empty.
  Tensor sums(int v, std::int64_t count, Mode mode) const {
    if (mode != Mode::training || count == 0 || sums_from[at(v)] < 0) return {};
    const std::int64_t parts = graph.nodes()[at(sums_from[at(v)])].layer->sum_parts(count);
    if (parts == 0 || parts > most_parts[at(v)]) return {};
    return in_arena(layout.sums[at(v)], vector_shape(parts * 2 * graph.shape(v).c), DType::f32);
  }
  Tensor scratch(StreamId stream) const {
    const Allocation& of = stream == StreamId::side ? side_workspace : workspace;
    return {of.data(), vector_shape(static_cast<std::int64_t>(of.bytes())), DType::u8};
  }
  Tensor label_tensor(std::int64_t count) const { return {labels.data(), {count, 1, 1, 1}, DType::i32}; }

  /// Tensors of one node's call.
  struct Operands {
    std::vector<Tensor> in, weights, grad_weights, buffers;
  };
  Operands operands(const Node& node, std::int64_t count, Mode mode, bool is_backward) const;
  void forward(int index, std::int64_t count, Mode mode) const;
  void backward(const Task& task, std::int64_t count, GradMode weight_mode) const;
};

/// An output lies over its input, or a gradient over its value or the gradient it came from, where the layer allows it and nobody else needs the old
/// contents.
Roots Executor::State::share_memory() const {
  const auto nodes = graph.nodes();
  Roots roots(graph.value_count());
  std::vector<int> consumers(at(graph.value_count()), 0), producer(consumers.size(), -1);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    producer[at(nodes[i].out)] = static_cast<int>(i);
    for (const int in : nodes[i].in) ++consumers[at(in)];
  }
  const auto is_its_own = [&](int v) { return producer[at(v)] >= 0 && !needs[at(producer[at(v)])].keeps_output && consumers[at(v)] == 1; };   // its consumer's
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const int in = nodes[i].in[0];
    if (needs[i].output_over_input && !needs[i].keeps_input && is_its_own(in) && graph.shape(in) == graph.shape(nodes[i].out)) roots.of[at(nodes[i].out)] = in;
  }
  for (const Task& task : list.tasks) {
    if (task.kind != TaskKind::backward_input) continue;
    const Node& node = nodes[at(task.node)];
    const Needs& need = needs[at(task.node)];
    bool is_grad_out_free = need.grad_over_grad && task.node + 1 < static_cast<int>(nodes.size());
    for (std::size_t i = 0; i < task.grad_modes.size(); ++i) {
      const int in = node.in[i];
      if (task.grad_modes[i] != GradMode::write) continue;
      if (need.grad_over_input && is_its_own(in)) roots.of[at(roots.count + in)] = in;
      else if (is_grad_out_free && graph.shape(in) == graph.shape(node.out)) roots.of[at(roots.count + in)] = roots.count + node.out, is_grad_out_free = false;
    }
  }
  return roots;
}

/// The task before which the compute stream waits for side task t, or the list's end.
int Executor::State::end_of_side_task(std::size_t t) const {
  for (std::size_t next = t + 1; next < list.tasks.size(); ++next)
    if (list.tasks[next].stream == StreamId::side) return static_cast<int>(next);
  return static_cast<int>(list.tasks.size()) - 1;
}

void Executor::State::plan() {
  const auto nodes = graph.nodes();
  const Roots roots = share_memory();
  const auto values = at(graph.value_count());
  sums_from.assign(values, -1), most_parts.assign(values, 0);
  for (const Node& taker : nodes)
    for (std::size_t input = 0; input < taker.in.size(); ++input)
      for (std::size_t i = 0; i < nodes.size() && taker.layer->takes_sums(input); ++i)
        if (nodes[i].out == taker.in[input] && nodes[i].layer->sum_parts(largest_batch()) > 0) {
          sums_from[at(nodes[i].out)] = static_cast<int>(i);
          most_parts[at(nodes[i].out)] = nodes[i].layer->sum_parts(largest_batch());
        }
  std::vector<bool> is_repeated(values, false);
  for (const Task& task : list.tasks)
    if (task.kind == TaskKind::repeat) is_repeated[at(nodes[at(task.node)].out)] = true;
  // Values, gradients, what is saved, sums, repeated values.
  const std::size_t saved_at = 2 * values, sums_at = saved_at + nodes.size(), repeated_at = sums_at + values;
  std::vector<Lifetime> times(repeated_at + values, Lifetime{0, -1, -1});
  const auto touch = [&](std::size_t tensor, std::size_t bytes, int task) {
    Lifetime& t = times[tensor];
    t.bytes = std::max(t.bytes, bytes);
    t.first = t.first < 0 ? task : std::min(t.first, task);
    t.last = std::max(t.last, task);
  };
  const auto touch_value = [&](int v, int task) { touch(roots.value(v), value_bytes(v), task); };
  const auto touch_grad = [&](int v, int task) { touch(roots.grad(v), value_bytes(v), task); };
  const auto touch_kept = [&](int v, int task) { is_repeated[at(v)] ? touch(repeated_at + at(v), value_bytes(v), task) : touch_value(v, task); };
  const auto touch_saved = [&](int node, int task) { touch(saved_at + at(node), needs[at(node)].saved_bytes, task); };

  const auto touch_sums = [&](int v, int task) {
    if (sums_from[at(v)] >= 0) touch(sums_at + at(v), static_cast<std::size_t>(most_parts[at(v)] * 2 * graph.shape(v).c) * sizeof(float), task);
  };

  touch_value(0, 0);
  for (std::size_t t = 0; t < list.tasks.size(); ++t) {
    const Task& task = list.tasks[t];
    const int now = static_cast<int>(t);
    if (task.kind == TaskKind::all_reduce) continue;
    const int until = task.stream == StreamId::side ? end_of_side_task(t) : now;   // what it touches stays as it is while compute tasks go on
    const Node& node = nodes[at(task.node)];
    const Needs& need = needs[at(task.node)];
    touch_saved(task.node, now);
    if (task.kind == TaskKind::forward) {
      for (const int in : node.in) touch_value(in, now), touch_sums(in, now);
      touch_value(node.out, now), touch_sums(node.out, now);
      continue;
    }
    if (task.kind == TaskKind::repeat) {
      for (const int in : node.in) touch_kept(in, now);
      touch_kept(node.out, now);
      continue;
    }
    touch_saved(task.node, until);
    if (need.keeps_input)
      for (const int in : node.in) touch_kept(in, until);
    if (need.keeps_output) touch_kept(node.out, until);
    if (task.node + 1 < static_cast<int>(nodes.size())) touch_grad(node.out, now), touch_grad(node.out, until);
    for (std::size_t i = 0; i < task.grad_modes.size(); ++i)
      if (task.grad_modes[i] != GradMode::skip) touch_grad(node.in[i], now);
  }
  const Plan plan = plan_memory(times);
  layout.value.resize(values), layout.kept.resize(values), layout.grad.resize(values);
  for (int v = 0; v < graph.value_count(); ++v) {
    layout.value[at(v)] = plan.offsets[roots.value(v)];
    layout.kept[at(v)] = is_repeated[at(v)] ? plan.offsets[repeated_at + at(v)] : layout.value[at(v)];
    layout.grad[at(v)] = plan.offsets[roots.grad(v)];
  }
  layout.saved.assign(plan.offsets.begin() + std::ptrdiff_t(saved_at), plan.offsets.begin() + std::ptrdiff_t(sums_at));
  layout.sums.assign(plan.offsets.begin() + std::ptrdiff_t(sums_at), plan.offsets.begin() + std::ptrdiff_t(repeated_at));
  layout.arena_bytes = plan.arena_bytes;
}

Executor::State::Operands Executor::State::operands(const Node& node, std::int64_t count, Mode mode, bool is_backward) const {
  Operands o;
  for (const int in : node.in) o.in.push_back(is_backward ? kept(in, count) : value(in, count));
  for (const int ordinal : node.parameters) {
    const int slice = slice_of[at(ordinal)];
    o.weights.push_back(parameters.weight(slice));
    o.grad_weights.push_back(parameters.slices()[at(slice)].is_frozen ? Tensor{} : parameters.grad(slice));
  }
  for (const int b : node.buffers) o.buffers.push_back(mode != Mode::evaluation ? parameters.candidate(b) : parameters.running(b));
  return o;
}

void Executor::State::forward(int index, std::int64_t count, Mode mode) const {
  const Node& node = graph.nodes()[at(index)];
  const bool is_again = mode == Mode::again;
  const Operands o = operands(node, count, mode, is_again);
  std::vector<Tensor> in_sums;
  for (const int in : node.in) in_sums.push_back(sums(in, count, mode));
  node.layer->forward({.device = context.device, .mode = mode, .in = o.in, .out = is_again ? kept(node.out, count) : value(node.out, count), .weights = o.weights, .buffers = o.buffers,
                       .saved = saved(index), .workspace = scratch(StreamId::compute), .labels = label_tensor(count),
                       .step = static_cast<const StepState*>(step.data()), .metrics = static_cast<MetricSums*>(metrics.data()),
                       .nonfinite_losses = parameters.nonfinite_losses(),
                       .predictions = mode == Mode::evaluation ? static_cast<Prediction*>(predictions.data()) : nullptr,
                       .exchange = context.exchange, .in_sums = in_sums, .out_sums = sums(node.out, count, mode)});
}

void Executor::State::backward(const Task& task, std::int64_t count, GradMode weight_mode) const {
  const Node& node = graph.nodes()[at(task.node)];
  const Operands o = operands(node, count, Mode::training, true);
  std::vector<GradIn> grad_in;
  for (std::size_t i = 0; i < task.grad_modes.size(); ++i)
    grad_in.push_back({task.grad_modes[i] == GradMode::skip ? Tensor{} : grad(node.in[i], count), task.grad_modes[i]});
  const bool is_loss = task.node + 1 == static_cast<int>(graph.nodes().size());
  const Backward b{.device = context.device, .in = o.in, .out = kept(node.out, count), .grad_out = is_loss ? Tensor{} : grad(node.out, count),
                   .grad_in = grad_in, .weights = o.weights, .grad_weights = o.grad_weights, .weight_mode = weight_mode, .buffers = o.buffers,
                   .saved = saved(task.node), .workspace = scratch(task.stream), .labels = label_tensor(count),
                   .step = static_cast<const StepState*>(step.data()), .exchange = context.exchange};
  task.kind == TaskKind::backward_input ? node.layer->backward_input(b) : node.layer->backward_weight(b);
}

/// What the first layer wants, if it alone reads the input.
std::int64_t Executor::State::best_input_channels() const {
  const Node* reader = nullptr;
  for (const Node& node : graph.nodes())
    for (const int in : node.in) {
      if (in != 0) continue;
      if (reader) return input_channels;
      reader = &node;
    }
  return reader ? reader->layer->input_channels(context.convolutions, context.dtype, input_shapes(*reader)) : input_channels;
}

Executor::Executor(Graph& graph, Parameters& parameters, const Context& context) : state_(std::make_unique<State>(graph, parameters, context)) {
  State& s = *state_;
  s.input_channels = s.best_input_channels();
  for (Node& node : graph.nodes()) {
    const std::vector<Shape> shapes = s.input_shapes(node);
    node.layer->prepare(context.device, context.convolutions, context.dtype, shapes);
    s.needs.push_back(node.layer->needs(context.dtype, shapes));
    s.workspace_bytes = std::max(s.workspace_bytes, s.needs.back().workspace_bytes);
  }
  s.slice_of = slices_by_ordinal(parameters);
  s.list = training_tasks(graph, parameters, context.bucket_bytes, context.repeats);
  if (context.device.is_host() || !context.overlaps)
    for (Task& task : s.list.tasks)
      if (task.stream == StreamId::side) task.stream = StreamId::compute;
  for (const Task& task : s.list.tasks)
    if (task.kind == TaskKind::backward_weight) {
      std::size_t& of_stream = task.stream == StreamId::side ? s.side_workspace_bytes : s.workspace_bytes;
      of_stream = std::max(of_stream, s.needs[at(task.node)].weight_workspace_bytes);
    }
  s.plan();
}
Executor::~Executor() = default;

MemoryPlan Executor::memory() const { return {state_->layout.arena_bytes, state_->workspace_bytes + state_->side_workspace_bytes}; }

void Executor::allocate() {
  State& s = *state_;
  const auto images = static_cast<std::size_t>(s.largest_batch());
  s.arena = s.context.device.allocate(s.layout.arena_bytes);
  s.workspace = s.context.device.allocate(s.workspace_bytes);
  s.side_workspace = s.context.device.allocate(s.side_workspace_bytes);
  s.labels = s.context.device.allocate(images * sizeof(std::int32_t));
  s.predictions = s.context.device.allocate(images * sizeof(Prediction));
  s.step = s.context.device.allocate(sizeof(StepState));
  s.metrics = s.context.device.allocate(sizeof(MetricSums));
}

Tensor Executor::input() const { return state_->value(0, state_->largest_batch()); }
Tensor Executor::labels() const { return state_->label_tensor(state_->largest_batch()); }
Tensor Executor::logits(std::int64_t count) const { return state_->value(state_->graph.nodes().back().in[0], count); }
StepState* Executor::step_state() const { return static_cast<StepState*>(state_->step.data()); }
MetricSums* Executor::metrics() const { return static_cast<MetricSums*>(state_->metrics.data()); }
Prediction* Executor::predictions() const { return static_cast<Prediction*>(state_->predictions.data()); }
const TaskList& Executor::tasks() const { return state_->list; }

void Executor::enqueue_training(std::int64_t count, bool is_first, bool is_last, Timeline* timeline, bool has_ranges) {
  const State& s = *state_;
  Device& device = s.context.device;
  const GradMode weight_mode = is_first ? GradMode::write : GradMode::add;
  if (is_first) device.zero(s.parameters.nonfinite_losses(), sizeof(float));
  if (is_first && count == 0) device.zero(s.parameters.memory().grad.data, s.parameters.memory().grad.bytes());
  const bool has_sums = is_last && s.context.comm.size() > 1;
  bool side_runs = false;                // since the compute stream last waited for it
  for (const Task& task : s.list.tasks) {
    if (task.kind == TaskKind::all_reduce) {
      if (!has_sums) continue;
      const ProfileRange range(has_ranges ? text_of("all_reduce ", task.bucket).c_str() : nullptr);
      const Bucket& bucket = s.list.buckets[at(task.bucket)];
      device.join(task.stream, StreamId::compute);
      if (side_runs) device.join(task.stream, StreamId::side);
      s.context.comm.all_reduce_sum(device, {s.parameters.memory().grad.as<float>() + bucket.begin, vector_shape(bucket.end - bucket.begin), DType::f32},
                                    task.stream);
      continue;
    }
    // Without images only the collectives are left: batch norm's sums, of nothing, and the all-reduce above.
    if (count == 0 && !s.graph.nodes()[at(task.node)].layer->is_normalization()) continue;
    const Node& node = s.graph.nodes()[at(task.node)];
    const std::string label = timeline || has_ranges ? text_of(node.layer->kind(), " ", name_of(task.kind), " ", node.name) : "";
    const ProfileRange range(has_ranges ? label.c_str() : nullptr);
    const bool is_aside = task.stream == StreamId::side;
    if (is_aside) {
      if (side_runs) device.join(StreamId::compute, StreamId::side);
      device.join(StreamId::side, StreamId::compute);
      device.use(StreamId::side);
    }
    if (task.kind == TaskKind::forward) s.forward(task.node, count, Mode::training);
    else if (task.kind == TaskKind::repeat) s.forward(task.node, count, Mode::again);
    else s.backward(task, count, weight_mode);
    if (is_aside) device.use(StreamId::compute), side_runs = true;
    if (timeline && is_aside) device.join(StreamId::compute, StreamId::side);   // one after another, each with its own time
    if (timeline) timeline->mark(label);
  }
  if (side_runs) device.join(StreamId::compute, StreamId::side);
  if (has_sums) device.join(StreamId::compute, StreamId::comm);   // a recording must not wait for a stream that is no part of it
}

void Executor::enqueue_evaluation(std::int64_t count) {
  if (count == 0) return;
  for (std::size_t i = 0; i < state_->graph.nodes().size(); ++i) state_->forward(static_cast<int>(i), count, Mode::evaluation);
}

}  // namespace lockstep
