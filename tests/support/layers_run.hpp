// layers_run: runs a small graph forward and backward, node by node, without planner or executor.
// Every value, gradient and scratch lies in memory of its own, filled with NaN before use, so that a read of what was never written shows.
#pragma once
#include <cstring>
#include <memory>
#include <vector>

#include "graph/graph.hpp"

namespace lockstep::test {

struct RunOptions {
  DType dtype = DType::f32;
  Exchange* exchange = nullptr;
  bool overlaps = false;                 // outputs over inputs and gradients over gradients wherever the layer allows it
};

class LayersRun {
 public:
  LayersRun(Device& device, Graph& graph, const RunOptions& options = {}) : device_(device), graph_(graph), options_(options) {
    for (int v = 0; v < graph.value_count(); ++v) {
      values_.push_back(make(graph.shape(v), options.dtype));
      grads_.push_back(make(graph.shape(v), options.dtype));
    }
    for (const ParameterSpec& spec : graph.parameter_specs()) {
      weights_.push_back(make(spec.shape, spec.is_norm_or_bias ? DType::f32 : options.dtype));
      grad_weights_.push_back(make(spec.shape, DType::f32));
    }
    for (const BufferSpec& spec : graph.buffer_specs()) {
      buffers_.push_back(make(vector_shape(spec.channels), DType::f32));
      put(buffers_.back(), std::vector<float>(static_cast<std::size_t>(spec.channels), spec.start));
    }
    for (Node& node : graph.nodes()) {
      std::vector<Shape> shapes;
      for (const int in : node.in) shapes.push_back(graph.shape(in));
      node.layer->prepare(device, {}, options.dtype, shapes);
      needs_.push_back(node.layer->needs(options.dtype, shapes));
      const auto bytes = [](std::size_t n) { return vector_shape(static_cast<std::int64_t>(n)); };
      saved_.push_back(make(bytes(needs_.back().saved_bytes), DType::u8));
      workspaces_.push_back(make(bytes(std::max(needs_.back().workspace_bytes, needs_.back().weight_workspace_bytes)), DType::u8));
    }
    if (options.overlaps) overlap();
    labels_ = make({graph.shape(0).n, 1, 1, 1}, DType::i32), predictions_ = make({graph.shape(0).n, 1, 1, 3}, DType::i32);
    step_ = make(vector_shape(sizeof(StepState)), DType::u8), metrics_ = make(vector_shape(sizeof(MetricSums)), DType::u8);
    losses_ = make(vector_shape(1), DType::f32);
    count_ = graph.shape(0).n;
    StepState step;
    step.inverse_global_count = 1, step.local_count = static_cast<std::int32_t>(count_);
    put_step(step);
    clear_metrics();
  }

  // What goes in.
  void put_input(const std::vector<float>& x) { put(values_[0], x); }
  void put_value(int value, const std::vector<float>& x) { put(values_[at(value)], x); }
  void put_weight(int i, const std::vector<float>& w) { put(weights_[at(i)], w); }
  void put_buffer(int i, const std::vector<float>& b) { put(buffers_[at(i)], b); }
  void put_labels(const std::vector<std::int32_t>& labels) { copy_in(labels_.data, labels.data(), labels.size() * 4); }
  void put_step(const StepState& step) { copy_in(step_.data, &step, sizeof step); }
  void clear_metrics() {
    const MetricSums none;
    copy_in(metrics_.data, &none, sizeof none);
    put(losses_, {0});
  }
  void freeze(int i) { grad_weights_[at(i)] = {}; }
  /// Later calls see the first `count` images only.
  void use_batch(std::int64_t count) { count_ = count; }

  void forward(Mode mode = Mode::training) {
    for (std::size_t i = 0; i < graph_.nodes().size(); ++i) {
      const Node& node = graph_.nodes()[i];
      const Operands o = operands(node);
      if (!options_.overlaps) poison(values_[at(node.out)]);
      poison(workspaces_[i]), poison(saved_[i]);
      node.layer->forward({.device = device_, .mode = mode, .in = o.in, .out = cut(values_[at(node.out)]), .weights = o.weights, .buffers = o.buffers,
                           .saved = mode == Mode::training ? saved_[i] : Tensor{}, .workspace = workspaces_[i], .labels = cut(labels_),
                           .step = static_cast<const StepState*>(step_.data), .metrics = static_cast<MetricSums*>(metrics_.data),
                           .nonfinite_losses = mode == Mode::training ? losses_.as<float>() : nullptr,
                           .predictions = mode == Mode::evaluation ? predictions_.as<Prediction>() : nullptr, .exchange = options_.exchange});
    }
    device_.wait();
  }

  /// From the gradient of the last value (unused by a loss).  weight_mode add: on top of the gradients that are there.
  void backward(const std::vector<float>& grad_out, GradMode weight_mode = GradMode::write) {
    std::vector<bool> has_grad(grads_.size(), false);
    for (std::size_t v = 0; v < grads_.size(); ++v)
      if (grads_[v].data != values_[v].data) poison(grads_[v]);
    if (weight_mode == GradMode::write)
      for (Tensor& grad : grad_weights_) poison(grad);
    put(grads_[at(graph_.output())], grad_out);
    for (std::size_t i = graph_.nodes().size(); i-- > 0;) {
      const Node& node = graph_.nodes()[i];
      Operands o = operands(node);
      std::vector<GradIn> grad_in;
      for (const int in : node.in) {
        grad_in.push_back({cut(grads_[at(in)]), has_grad[at(in)] ? GradMode::add : GradMode::write});
        has_grad[at(in)] = true;
      }
      if (!needs_[i].keeps_input)
        for (Tensor& in : o.in) in.data = nullptr;
      Tensor out = cut(values_[at(node.out)]);
      if (!needs_[i].keeps_output) out.data = nullptr;
      const Backward b{.device = device_, .in = o.in, .out = out, .grad_out = cut(grads_[at(node.out)]), .grad_in = grad_in, .weights = o.weights,
                       .grad_weights = o.grad_weights, .weight_mode = weight_mode, .buffers = o.buffers, .saved = saved_[i],
                       .workspace = workspaces_[i], .labels = cut(labels_), .step = static_cast<const StepState*>(step_.data),
                       .exchange = options_.exchange};
      poison(workspaces_[i]);
      node.layer->backward_weight(b);    // first: a gradient may lie over grad_out
      poison(workspaces_[i]);
      node.layer->backward_input(b);
    }
    device_.wait();
  }

  // What came out.
  std::vector<float> output() { return value(graph_.output()); }
  std::vector<float> value(int v) { return get(cut(values_[at(v)])); }
  std::vector<float> grad_input() { return grad(0); }
  std::vector<float> grad(int v) { return get(cut(grads_[at(v)])); }
  std::vector<float> grad_weight(int i) { return get(grad_weights_[at(i)]); }
  std::vector<float> weight(int i) { return get(weights_[at(i)]); }
  std::vector<float> buffer(int i) { return get(buffers_[at(i)]); }
  std::vector<Prediction> predictions() {
    std::vector<Prediction> p(at(static_cast<int>(count_)));
    device_.copy_to_host(p.data(), predictions_.data, p.size() * sizeof(Prediction));
    return p;
  }
  MetricSums metrics() {
    MetricSums m;
    device_.copy_to_host(&m, metrics_.data, sizeof m);
    return m;
  }
  float nonfinite_losses() { return get(losses_)[0]; }

 private:
  struct Operands {
    std::vector<Tensor> in, weights, grad_weights, buffers;
  };
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  Operands operands(const Node& node) const {
    Operands o;
    for (const int in : node.in) o.in.push_back(cut(values_[at(in)]));
    for (const int p : node.parameters) o.weights.push_back(weights_[at(p)]), o.grad_weights.push_back(grad_weights_[at(p)]);
    for (const int b : node.buffers) o.buffers.push_back(buffers_[at(b)]);
    return o;
  }
  Tensor make(const Shape& shape, DType dtype) {
    Tensor t{nullptr, shape, dtype};
    memory_.push_back(device_.allocate(t.bytes()));
    t.data = memory_.back().data();
    poison(t);
    return t;
  }
  Tensor cut(Tensor t) const {
    t.shape.n = count_;
    return t;
  }
  void overlap() {
    std::vector<int> readers(values_.size(), 0);
    std::vector<bool> is_kept(values_.size(), false), is_made(values_.size(), false);   // needed in backward by others; by a node that needs it no more
    is_kept[0] = true;                   // so that forward may run again
    for (std::size_t i = 0; i < graph_.nodes().size(); ++i) {
      const Node& node = graph_.nodes()[i];
      for (const int in : node.in) ++readers[at(in)], is_kept[at(in)] = is_kept[at(in)] || needs_[i].keeps_input;
      if (needs_[i].keeps_output) is_kept[at(node.out)] = true;
      is_made[at(node.out)] = !needs_[i].keeps_output;
    }
    for (std::size_t i = 0; i < graph_.nodes().size(); ++i) {
      const Node& node = graph_.nodes()[i];
      const int in = node.in[0];
      if (needs_[i].output_over_input && readers[at(in)] == 1 && !is_kept[at(in)]) values_[at(node.out)] = values_[at(in)];
    }
    for (std::size_t i = graph_.nodes().size(); i-- > 0;) {
      const Node& node = graph_.nodes()[i];
      bool is_grad_out_free = needs_[i].grad_over_grad;
      for (const int in : node.in) {
        if (readers[at(in)] != 1) continue;
        if (needs_[i].grad_over_input && is_made[at(in)]) grads_[at(in)] = values_[at(in)];
        else if (is_grad_out_free && graph_.shape(in) == graph_.shape(node.out)) grads_[at(in)] = grads_[at(node.out)], is_grad_out_free = false;
      }
    }
  }
  void poison(const Tensor& t) {
    if (!t) return;
    const std::vector<unsigned char> bytes(t.bytes(), 0xff);   // a NaN in every floating type
    copy_in(t.data, bytes.data(), bytes.size());
  }
  void copy_in(void* to, const void* from, std::size_t bytes) {
    device_.copy_to_device(to, from, bytes);
    device_.wait();
  }
  void put(const Tensor& t, const std::vector<float>& x) {
    dispatch(t.dtype, [&]<class T>(T) {
      std::vector<T> typed;
      for (const float v : x) typed.push_back(T(v));
      copy_in(t.data, typed.data(), typed.size() * sizeof(T));
    });
  }
  std::vector<float> get(const Tensor& t) {
    return dispatch(t.dtype, [&]<class T>(T) {
      std::vector<T> typed(static_cast<std::size_t>(t.size()));
      device_.copy_to_host(typed.data(), t.data, typed.size() * sizeof(T));
      return std::vector<float>(typed.begin(), typed.end());
    });
  }

  Device& device_;
  Graph& graph_;
  RunOptions options_;
  std::int64_t count_ = 0;
  std::vector<Allocation> memory_;
  std::vector<Tensor> values_, grads_, weights_, grad_weights_, buffers_, saved_, workspaces_;
  std::vector<Needs> needs_;
  Tensor labels_, predictions_, step_, metrics_, losses_;
};

}  // namespace lockstep::test
