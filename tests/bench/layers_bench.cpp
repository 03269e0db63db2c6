// layers_bench: memory rate of the layers that move more than they compute, at ResNet-20's and ResNet-18's shapes.
// GB/s counts the reads and writes that the passes need; relu's line, one read and one write, says what the machine can do.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "layers/fusion.hpp"
#include "layers/layers.hpp"
#include "support/layers_run.hpp"

namespace lockstep::test {
namespace {

double best_seconds(int repeats, auto&& body) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const double start = stopwatch_seconds();
    body();
    best = std::min(best, stopwatch_seconds() - start);
  }
  return best;
}

/// One node, the last of the graph, on tensors of its own, called directly: the harness's filling must not be timed.
/// moved: what the passes read and write, in arrays of the first input's size.
void time_node(Device& device, Graph& graph, double moved_forward, double moved_backward) {
  Node& node = graph.nodes().back();
  Layer& layer = *node.layer;
  std::vector<Allocation> memory;
  const auto tensor = [&](const Shape& s, DType dtype) {
    Tensor t{nullptr, s, dtype};
    memory.push_back(device.allocate(t.bytes()));
    t.data = memory.back().data();
    for (std::int64_t i = 0; dtype == DType::f32 && i < t.size(); ++i) t.as<float>()[i] = static_cast<float>(i * 2654435761u % 1000) / 500.f - 1;
    return t;
  };
  const auto bytes = [&](std::size_t n) { return tensor(vector_shape(static_cast<std::int64_t>(n)), DType::u8); };
  std::vector<Shape> shapes;
  std::vector<Tensor> in;
  std::vector<GradIn> grad_in;
  for (const int v : node.in) {
    shapes.push_back(graph.shape(v));
    in.push_back(tensor(shapes.back(), DType::f32));
    grad_in.push_back({tensor(shapes.back(), DType::f32), GradMode::write});
  }
  std::vector<Tensor> weights, grad_weights, buffers;
  for (const int ordinal : node.parameters) {
    const Shape& shape = graph.parameter_specs()[static_cast<std::size_t>(ordinal)].shape;
    weights.push_back(tensor(shape, DType::f32)), grad_weights.push_back(tensor(shape, DType::f32));
  }
  for (std::size_t i = 0; i < node.buffers.size(); ++i) buffers.push_back(tensor(vector_shape(graph.shape(node.out).c), DType::f32));
  const Needs needs = layer.needs(DType::f32, shapes);
  const Tensor out = tensor(graph.shape(node.out), DType::f32), grad_out = tensor(out.shape, DType::f32);
  const Tensor saved = bytes(needs.saved_bytes), workspace = bytes(std::max(needs.workspace_bytes, needs.weight_workspace_bytes));
  const Allocation step = device.allocate(sizeof(StepState));
  const auto* state = static_cast<const StepState*>(step.data());

  const double forward = best_seconds(60, [&] {
    layer.forward({.device = device, .mode = Mode::training, .in = in, .out = out, .weights = weights, .buffers = buffers, .saved = saved,
                   .workspace = workspace, .labels = {}, .step = state, .metrics = nullptr, .nonfinite_losses = nullptr, .predictions = nullptr,
                   .exchange = nullptr});
    device.wait();
  });
  const double backward = best_seconds(60, [&] {
    layer.backward_input({.device = device, .in = in, .out = out, .grad_out = grad_out, .grad_in = grad_in, .weights = weights,
                          .grad_weights = grad_weights, .weight_mode = GradMode::write, .buffers = buffers, .saved = saved, .workspace = workspace,
                          .labels = {}, .step = state, .exchange = nullptr});
    device.wait();
  });
  const double gigabyte = static_cast<double>(in[0].bytes()) / 1e9;
  std::printf("%-22s %-20s forward %7.3f ms %5.1f GB/s   backward %7.3f ms %5.1f GB/s\n", text(shapes[0]).c_str(), layer.kind().c_str(), forward * 1e3,
              moved_forward * gigabyte / forward, backward * 1e3, moved_backward * gigabyte / backward);
}

void time_batch_norm(Device& device, const Shape& shape, bool has_residual, bool has_relu) {
  Graph graph(shape);
  const Value x = graph.input(), residual = has_residual ? relu(x) : x;
  Value y = batch_norm(x, "bn");
  if (has_residual) y = add(y, residual);
  if (has_relu) y = relu(y);
  fuse(graph);
  time_node(device, graph, has_residual ? 4 : 3, has_residual ? 7 : 5);
}

void time_layer(Device& device, const Shape& shape, Value (*layer)(Value), double moved_forward, double moved_backward) {
  Graph graph(shape);
  layer(graph.input());
  time_node(device, graph, moved_forward, moved_backward);
}

}  // namespace
}  // namespace lockstep::test

int main() {
  using namespace lockstep;
  const KokkosSession kokkos;
  Device device;
  std::printf("%s\n", device.name().c_str());
  for (const Shape& shape : {Shape{128, 32, 32, 16}, Shape{128, 16, 16, 32}, Shape{128, 8, 8, 64}, Shape{16, 56, 56, 64}, Shape{16, 7, 7, 512}}) {
    test::time_layer(device, shape, relu, 2, 3);
    test::time_batch_norm(device, shape, false, false);
    test::time_batch_norm(device, shape, false, true);
    test::time_batch_norm(device, shape, true, true);
  }
  test::time_layer(device, {16, 112, 112, 64}, [](Value x) { return max_pool(x, 3, 2, 1); }, 1.3125, 1.3125);   // an output and its argmax: 5/16
  test::time_layer(device, {16, 55, 55, 64}, [](Value x) { return max_pool(x, 3, 2); }, 1.3125, 1.3125);
  test::time_layer(device, {128, 8, 8, 64}, [](Value x) { return average_pool(x); }, 1, 1);
  test::time_layer(device, {128, 32, 32, 16}, [](Value x) { return subsample_pad(x, 2, 32); }, 1, 1.5);
  test::time_layer(device, {128, 1, 1, 4096}, [](Value x) { return dropout(x, 0.5, 0); }, 2, 2);
}
