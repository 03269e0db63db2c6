// How fast the backends are: run by hand, with as many threads as a rank has, on a quiet machine.
//   OMP_NUM_THREADS=2 build/cpu/tests/backends_tests --gtest_also_run_disabled_tests --gtest_filter='ConvSpeed.*'
// Prints the best of several calls of each kind, weights' packing included.  LOCKSTEP_CONV_SPEED=kokkos: of this backend (default: the first).
// With one thread it counts that thread's CPU time, so that other processes on the machine hardly matter.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "support/backends_conv.hpp"

namespace lockstep::test {
namespace {

struct Timed {
  const char* name;
  ConvProblem problem;
};
const Timed timed[] = {
    {"ResNet-20 stem", {.n = 128, .h = 32, .w = 32, .c = 3, .k = 16, .r = 3, .s = 3, .stride = 1, .pad = 1}},
    {"ResNet-20 16", {.n = 128, .h = 32, .w = 32, .c = 16, .k = 16, .r = 3, .s = 3, .stride = 1, .pad = 1}},
    {"ResNet-20 16-32", {.n = 128, .h = 32, .w = 32, .c = 16, .k = 32, .r = 3, .s = 3, .stride = 2, .pad = 1}},
    {"ResNet-20 32", {.n = 128, .h = 16, .w = 16, .c = 32, .k = 32, .r = 3, .s = 3, .stride = 1, .pad = 1}},
    {"ResNet-20 32-64", {.n = 128, .h = 16, .w = 16, .c = 32, .k = 64, .r = 3, .s = 3, .stride = 2, .pad = 1}},
    {"ResNet-20 64", {.n = 128, .h = 8, .w = 8, .c = 64, .k = 64, .r = 3, .s = 3, .stride = 1, .pad = 1}},
    {"ResNet-20 fc", {.n = 128, .c = 64, .k = 10, .has_bias = true}},
    {"ResNet-18 stem", {.n = 16, .h = 224, .w = 224, .c = 3, .k = 64, .r = 7, .s = 7, .stride = 2, .pad = 3}},
    {"ResNet-18 64", {.n = 16, .h = 56, .w = 56, .c = 64, .k = 64, .r = 3, .s = 3, .stride = 1, .pad = 1}},
    {"ResNet-18 64-128", {.n = 16, .h = 56, .w = 56, .c = 64, .k = 128, .r = 3, .s = 3, .stride = 2, .pad = 1}},
    {"ResNet-18 shortcut", {.n = 16, .h = 56, .w = 56, .c = 64, .k = 128, .r = 1, .s = 1, .stride = 2}},
    {"ResNet-18 128", {.n = 16, .h = 28, .w = 28, .c = 128, .k = 128, .r = 3, .s = 3, .stride = 1, .pad = 1}},
    {"ResNet-18 256", {.n = 16, .h = 14, .w = 14, .c = 256, .k = 256, .r = 3, .s = 3, .stride = 1, .pad = 1}},
    {"ResNet-18 512", {.n = 16, .h = 7, .w = 7, .c = 512, .k = 512, .r = 3, .s = 3, .stride = 1, .pad = 1}},
    {"ResNet-50 256-64", {.n = 16, .h = 56, .w = 56, .c = 256, .k = 64}},
    {"AlexNet 1", {.n = 64, .h = 224, .w = 224, .c = 3, .k = 64, .r = 11, .s = 11, .stride = 4, .pad = 2, .has_bias = true}},
    {"AlexNet 2", {.n = 64, .h = 27, .w = 27, .c = 64, .k = 192, .r = 5, .s = 5, .stride = 1, .pad = 2, .has_bias = true}},
    {"AlexNet fc6", {.n = 64, .c = 9216, .k = 4096, .has_bias = true}},
    {"LeNet 2", {.n = 64, .h = 14, .w = 14, .c = 6, .k = 16, .r = 5, .s = 5, .has_bias = true}},
};

double seconds_now(const Device& device) {
  if (!device.is_host() || device.concurrency() > 1) return stopwatch_seconds();
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Seconds of the fastest of some calls, after one that is not timed.
template <class Call>
double best_seconds(Device& device, Call&& call) {
  double best = std::numeric_limits<double>::infinity(), spent = 0;
  for (int i = 0; i == 0 || i < 4 || (spent < 0.5 && i < 200); ++i) {
    device.wait();
    const double start = seconds_now(device);
    call();
    device.wait();
    const double seconds = seconds_now(device) - start;
    if (i > 0) best = std::min(best, seconds), spent += seconds;
  }
  return best;
}

TEST(ConvSpeed, DISABLED_Table) {
  Device device;
  const char* const wanted = std::getenv("LOCKSTEP_CONV_SPEED");
  BackendConfig config;
  if (wanted) config.conv = wanted;
  std::printf("%s; GFLOP/s (milliseconds)\n%-20s %18s %18s %18s %18s\n", device.name().c_str(), "", "forward", "grad input", "grad input, added", "grad weight");
  for (const auto& [name, p] : timed) {
    const auto op = make_conv(device, {.config = config}, p);
    const ConvInputs in = random_inputs(p, 1);
    const TestTensor weight(device, p.weight(), p.dtype, in.weight), bias(device, vector_shape(p.k), DType::f32, in.bias);
    const auto zeros = [&](const Shape& shape, DType dtype) { return TestTensor(device, shape, dtype, Numbers(static_cast<std::size_t>(shape.size()))); };
    const TestTensor x = zeros(p.input(), p.dtype), grad_x = zeros(p.input(), p.dtype), y = zeros(p.output(), p.dtype), grad_y = zeros(p.output(), p.dtype);
    const TestTensor grad_weight = zeros(p.weight(), DType::f32), grad_bias = zeros(vector_shape(p.k), DType::f32);
    const TestTensor workspace(device, vector_shape(most_workspace(*op)), DType::u8);
    const Tensor none;
    const ConvArguments a{.x = x, .weight = weight, .bias = p.has_bias ? Tensor(bias) : none, .y = y, .workspace = workspace};
    ConvArguments b{.weight = weight, .grad_y = grad_y, .grad_x = grad_x, .workspace = workspace};
    const ConvArguments c{.x = x, .grad_y = grad_y, .grad_weight = grad_weight, .grad_bias = p.has_bias ? Tensor(grad_bias) : none, .workspace = workspace};
    const double flops = 2e-9 * static_cast<double>(p.output().size() * p.terms());
    std::printf("%-20s", name);
    const auto print = [&](double seconds) { std::printf(" %8.1f (%7.2f)", flops / seconds, 1e3 * seconds); };
    print(best_seconds(device, [&] { op->forward(device, a); }));
    print(best_seconds(device, [&] { op->grad_input(device, b); }));
    b.mode = GradMode::add;
    print(best_seconds(device, [&] { op->grad_input(device, b); }));
    print(best_seconds(device, [&] { op->grad_weight(device, c); }));
    std::printf("  workspace %zu KiB\n", op->workspace_bytes() >> 10);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace lockstep::test
