// batch_norm_bench: memory rate of batch norm (+ add) (+ relu), forward and backward, at ResNet-20's and ResNet-18's shapes.
// GB/s counts the reads and writes that the passes need: the copy line says what this machine can do.
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

/// One node on tensors of its own, called directly: the harness's filling must not be timed.
void time_node(Device& device, Shape shape, bool has_residual, bool has_relu) {
  Graph graph(shape);
  Value y = batch_norm(graph.input(), "bn");
  if (has_residual) y = add(y, relu(graph.input()));
  if (has_relu) y = relu(y);
  fuse(graph);
  Node& node = graph.nodes().back();
  Layer& layer = *node.layer;
  const std::vector<Shape> shapes(node.in.size(), shape);
  const Needs needs = layer.needs(DType::f32, shapes);
  std::vector<Allocation> memory;
  const auto tensor = [&](Shape s, DType dtype) {
    Tensor t{nullptr, s, dtype};
    memory.push_back(device.allocate(t.bytes()));
    t.data = memory.back().data();
    if (dtype == DType::f32)
      for (std::int64_t i = 0; i < t.size(); ++i) t.as<float>()[i] = static_cast<float>(i * 2654435761u % 1000) / 500.f - 1;
    return t;
  };
  const std::vector<Tensor> in{tensor(shape, DType::f32), tensor(shape, DType::f32)};
  const Shape c = vector_shape(shape.c);
  const std::vector<Tensor> weights{tensor(c, DType::f32), tensor(c, DType::f32)}, grads{tensor(c, DType::f32), tensor(c, DType::f32)};
  std::fill_n(weights[0].as<float>(), shape.c, 0.577f);   // x's deviation: gradients neither shrink to denormals nor grow when repeated in place
  const std::vector<Tensor> buffers{tensor(c, DType::f32), tensor(c, DType::f32)};
  const Tensor out = tensor(shape, DType::f32), grad_out = tensor(shape, DType::f32), residual = tensor(shape, DType::f32);
  const Tensor saved = tensor(vector_shape(static_cast<std::int64_t>(needs.saved_bytes)), DType::u8);
  const Tensor workspace = tensor(vector_shape(static_cast<std::int64_t>(needs.workspace_bytes)), DType::u8);
  const std::vector<GradIn> grad_in{{grad_out, GradMode::write}, {residual, GradMode::write}};
  const double forward = best_seconds(60, [&] {
    layer.forward({.device = device, .mode = Mode::training, .in = std::span(in).first(node.in.size()), .out = out, .weights = weights, .buffers = buffers,
                   .saved = saved, .workspace = workspace, .labels = {}, .step = nullptr, .metrics = nullptr, .nonfinite_losses = nullptr,
                   .predictions = nullptr, .exchange = nullptr});
  });
  const double backward = best_seconds(60, [&] {
    layer.backward_input({.device = device, .in = in, .out = out, .grad_out = grad_out, .grad_in = std::span(grad_in).first(node.in.size()),
                          .weights = weights, .grad_weights = grads, .weight_mode = GradMode::write, .buffers = buffers, .saved = saved,
                          .workspace = workspace, .labels = {}, .step = nullptr, .exchange = nullptr});
  });
  const double gigabyte = static_cast<double>(in[0].bytes()) / 1e9;
  std::printf("%-22s %-22s forward %7.3f ms %5.1f GB/s   backward %7.3f ms %5.1f GB/s\n", text(shape).c_str(), layer.kind().c_str(), forward * 1e3,
              (has_residual ? 4 : 3) * gigabyte / forward, backward * 1e3, (has_residual ? 7 : 5) * gigabyte / backward);
}

void time_copy(Device& device, Shape shape) {
  const Allocation a = device.allocate(static_cast<std::size_t>(shape.size()) * 4), b = device.allocate(a.bytes());
  Graph graph(shape);
  relu(graph.input());
  const std::vector<Tensor> in{{a.data(), shape, DType::f32}};
  const double seconds = best_seconds(60, [&] {
    graph.nodes()[0].layer->forward({.device = device, .mode = Mode::training, .in = in, .out = {b.data(), shape, DType::f32}, .weights = {}, .buffers = {},
                                     .saved = {}, .workspace = {}, .labels = {}, .step = nullptr, .metrics = nullptr, .nonfinite_losses = nullptr,
                                     .predictions = nullptr, .exchange = nullptr});
  });
  std::printf("%-22s %-22s forward %7.3f ms %5.1f GB/s\n", text(shape).c_str(), "relu (1 read, 1 write)", seconds * 1e3, 2e-9 * static_cast<double>(a.bytes()) / seconds);
}

}  // namespace
}  // namespace lockstep::test

int main() {
  using namespace lockstep;
  const KokkosSession kokkos;
  Device device;
  std::printf("%s\n", device.name().c_str());
  for (const Shape shape : {Shape{128, 32, 32, 16}, Shape{128, 16, 16, 32}, Shape{128, 8, 8, 64}, Shape{16, 56, 56, 64}, Shape{16, 7, 7, 512}}) {
    test::time_copy(device, shape);
    test::time_node(device, shape, false, false);
    test::time_node(device, shape, false, true);
    test::time_node(device, shape, true, true);
  }
}
