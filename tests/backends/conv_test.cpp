// conv: every backend that this build has, on every kind of convolution that the models use and on awkward ones.
#include "backends/conv.hpp"

#include <gtest/gtest.h>

#include "backends/conv_choices.hpp"
#include "support/backends_conv.hpp"

namespace lockstep::test {
namespace {

const std::vector<ConvProblem> problems = {
    {.n = 3, .h = 9, .w = 9, .c = 16, .k = 16, .r = 3, .s = 3, .stride = 1, .pad = 1},
    {.n = 4, .h = 8, .w = 8, .c = 64, .k = 64, .r = 3, .s = 3, .stride = 1, .pad = 1},
    {.n = 3, .h = 8, .w = 8, .c = 16, .k = 32, .r = 3, .s = 3, .stride = 2, .pad = 1},
    {.n = 3, .h = 12, .w = 12, .c = 3, .k = 16, .r = 3, .s = 3, .stride = 1, .pad = 1},                       // the CIFAR stem
    {.n = 2, .h = 17, .w = 17, .c = 3, .k = 64, .r = 7, .s = 7, .stride = 2, .pad = 3},                       // the ImageNet stem
    {.n = 1, .h = 31, .w = 31, .c = 3, .k = 64, .r = 11, .s = 11, .stride = 4, .pad = 2, .has_bias = true},   // AlexNet's first
    {.n = 5, .h = 14, .w = 14, .c = 6, .k = 16, .r = 5, .s = 5, .stride = 1, .pad = 0, .has_bias = true},     // LeNet's second
    {.n = 4, .h = 28, .w = 28, .c = 1, .k = 6, .r = 5, .s = 5, .stride = 1, .pad = 2, .has_bias = true},      // LeNet's first
    {.n = 4, .h = 7, .w = 7, .c = 32, .k = 64, .r = 1, .s = 1, .stride = 1, .pad = 0},
    {.n = 4, .h = 7, .w = 7, .c = 32, .k = 64, .r = 1, .s = 1, .stride = 2, .pad = 0},                        // leaves pixels that no output reads
    {.n = 8, .h = 1, .w = 1, .c = 400, .k = 120, .r = 1, .s = 1, .stride = 1, .pad = 0, .has_bias = true},    // linear
    {.n = 2, .h = 40, .w = 40, .c = 8, .k = 520, .r = 1, .s = 1, .stride = 1, .pad = 0, .has_bias = true},    // many pixels and biases
    {.n = 7, .h = 1, .w = 1, .c = 64, .k = 10, .r = 1, .s = 1, .stride = 1, .pad = 0},
    {.n = 1, .h = 1, .w = 1, .c = 33, .k = 5, .r = 1, .s = 1, .stride = 1, .pad = 0, .has_bias = true},
    {.n = 1, .h = 1, .w = 1, .c = 1, .k = 1, .r = 1, .s = 1, .stride = 1, .pad = 0},
    {.n = 3, .h = 7, .w = 13, .c = 5, .k = 11, .r = 3, .s = 3, .stride = 1, .pad = 1, .has_bias = true},
    {.n = 3, .h = 10, .w = 7, .c = 19, .k = 37, .r = 3, .s = 3, .stride = 2, .pad = 1},                       // the last row is not reached
    {.n = 2, .h = 9, .w = 6, .c = 18, .k = 20, .r = 3, .s = 5, .stride = 1, .pad = 1},                        // not square
    {.n = 2, .h = 6, .w = 9, .c = 8, .k = 4, .r = 3, .s = 1, .stride = 1, .pad = 1, .has_bias = true},        // wider padding than kernel
    {.n = 2, .h = 5, .w = 5, .c = 9, .k = 7, .r = 3, .s = 3, .stride = 3, .pad = 0},
    {.n = 3, .h = 3, .w = 3, .c = 24, .k = 40, .r = 3, .s = 3, .stride = 1, .pad = 0},                        // one output a channel
    {.n = 1, .h = 2, .w = 2, .c = 512, .k = 96, .r = 3, .s = 3, .stride = 1, .pad = 1},                       // more padding than image
};

/// Calls check(backend, problem) with each dtype that the backend supports.
template <class Check>
void for_each_case(Check&& check) {
  for (const ConvBackend& backend : conv_backends())
    for (ConvProblem problem : problems)
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        problem.dtype = dtype;
        if (!backend.supports(problem)) continue;
        SCOPED_TRACE(backend.name + ": " + text(problem));
        check(backend, problem);
      }
}

void expect_near(const ConvBackend& backend, const ConvProblem& p, std::int64_t n, const ConvResult& want, const ConvRun& got) {
  const std::int64_t pixels = n * p.p() * p.q();
  const int roundings = backend.rounds_first ? 2 : 1;        // of a sum, and with what is added to it
  EXPECT_LT(distance(want.y, got.result.y), roundings * rounding_of_sums(p.terms(), p.dtype));
  EXPECT_LT(distance(want.grad_x, got.result.grad_x), roundings * rounding_of_sums(p.r * p.s * p.k, p.dtype));
  EXPECT_LT(distance(want.grad_weight, got.result.grad_weight), roundings * rounding_of_sums(pixels, backend.rounds_first ? p.dtype : DType::f32));
  if (p.has_bias) { EXPECT_LT(distance(want.grad_bias, got.result.grad_bias), rounding_of_sums(pixels, DType::f32)); }
  EXPECT_TRUE(got.stayed_inside);
}

TEST(Convolution, EveryBackendAgreesWithTheFloat64LoopForwardAndAllGradients) {
  Device device;
  for_each_case([&](const ConvBackend& backend, const ConvProblem& p) {
    const ConvInputs in = random_inputs(p, p.n);
    const auto op = backend.make(device, p, {});
    expect_near(backend, p, p.n, reference_conv(p, p.n, in, false), run_conv(device, *op, p.n, in, false));
  });
}

TEST(Convolution, GradientsAreAddedToWhatIsThere) {
  Device device;
  for_each_case([&](const ConvBackend& backend, const ConvProblem& p) {
    const ConvInputs in = random_inputs(p, p.n, 2);
    const auto op = backend.make(device, p, {});
    expect_near(backend, p, p.n, reference_conv(p, p.n, in, true), run_conv(device, *op, p.n, in, true));
  });
}

TEST(Convolution, GradientsOfWeightsInTheProblemsOwnTypeAreTheF32OnesRounded) {
  Device device;
  for_each_case([&](const ConvBackend& backend, const ConvProblem& p) {
    if (p.dtype == DType::f32) return;
    const ConvInputs in = random_inputs(p, p.n);
    const auto op = backend.make(device, p, {});
    const TestTensor x(device, p.input(), p.dtype, in.x), grad_y(device, p.output(), p.dtype, in.grad_y);
    const TestTensor wide(device, p.weight(), DType::f32), narrow(device, p.weight(), p.dtype), workspace(device, vector_shape(most_workspace(*op)), DType::u8);
    for (const TestTensor* to : {&wide, &narrow}) op->grad_weight(device, {.x = x, .grad_y = grad_y, .grad_weight = *to, .workspace = workspace});
    Numbers want = wide.numbers();
    for (double& number : want) number = rounded(number, p.dtype);
    EXPECT_EQ(narrow.numbers(), want);
    EXPECT_TRUE(narrow.is_margin_intact() && workspace.is_margin_intact());
  });
}

TEST(Convolution, ABatchMayBeSmallerThanTheOneItWasMadeFor) {
  Device device;
  for_each_case([&](const ConvBackend& backend, ConvProblem p) {
    const std::int64_t n = p.n;
    p.n = 7 * n + 3;
    const auto op = backend.make(device, p, {});
    for (const std::int64_t batch : {n, std::int64_t{1}}) {
      const ConvInputs in = random_inputs(p, batch, 3);
      expect_near(backend, p, batch, reference_conv(p, batch, in, false), run_conv(device, *op, batch, in, false));
    }
  });
}

TEST(Convolution, AnEmptyBatchHasZeroGradientsOfWeights) {
  Device device;
  for_each_case([&](const ConvBackend& backend, const ConvProblem& p) {
    const ConvInputs in = random_inputs(p, 0);
    const auto op = backend.make(device, p, {});
    const ConvRun written = run_conv(device, *op, 0, in, false), added = run_conv(device, *op, 0, in, true);
    EXPECT_EQ(written.result.grad_weight, Numbers(in.weight.size()));
    EXPECT_EQ(added.result.grad_weight, in.from_weight);
    if (p.has_bias) {
      EXPECT_EQ(written.result.grad_bias, Numbers(in.bias.size()));
      EXPECT_EQ(added.result.grad_bias, in.from_bias);
    }
    EXPECT_TRUE(written.stayed_inside && added.stayed_inside);
  });
}

TEST(Convolution, RepetitionGivesTheSameBits) {
  Device device;
  for_each_case([&](const ConvBackend& backend, const ConvProblem& p) {
    const ConvInputs in = random_inputs(p, p.n, 4);
    const ConvSetting fixed{.config = {.deterministic = true}};
    const auto op = backend.make(device, p, fixed), other = backend.make(device, p, fixed);
    const ConvResult first = run_conv(device, *op, p.n, in, true).result;
    for (ConvOp* again : {op.get(), other.get()}) {
      const ConvResult second = run_conv(device, *again, p.n, in, true).result;
      EXPECT_EQ(first.y, second.y);
      EXPECT_EQ(first.grad_x, second.grad_x);
      EXPECT_EQ(first.grad_weight, second.grad_weight);
      if (p.has_bias) { EXPECT_EQ(first.grad_bias, second.grad_bias); }
    }
  });
}

TEST(Convolution, SumsOfEqualInputsHaveEqualBits) {
  Device device;
  int with_sums = 0;
  for (const ConvBackend& backend : conv_backends())
    for (const ConvProblem& p : {ConvProblem{.n = 64, .h = 32, .w = 32, .c = 64, .k = 64, .r = 3, .s = 3, .stride = 1, .pad = 1, .dtype = DType::f16},
                                 ConvProblem{.n = 64, .h = 32, .w = 32, .c = 64, .k = 256, .r = 1, .s = 1, .stride = 1, .pad = 0, .dtype = DType::f16}}) {
      if (!backend.supports(p)) continue;
      SCOPED_TRACE(backend.name + ": " + text(p));
      ConvChoices choices;
      const auto op = backend.make(device, p, {.config = {.deterministic = true}, .allows_tf32 = false, .choices = &choices});
      const std::int64_t parts = op->sum_parts(p.n);
      if (parts == 0) continue;
      ++with_sums;
      const ConvInputs in = random_inputs(p, p.n, 7);
      const TestTensor x(device, p.input(), p.dtype, in.x), weight(device, p.weight(), p.dtype, in.weight), y(device, p.output(), p.dtype);
      const TestTensor sums(device, vector_shape(parts * 2 * p.k), DType::f32), workspace(device, vector_shape(most_workspace(*op)), DType::u8);
      const auto run = [&] {
        op->forward(device, {.x = x, .weight = weight, .y = y, .sums = sums, .workspace = workspace});
        return sums.numbers();
      };
      const Numbers first = run();
      for (int i = 0; i < 20; ++i) ASSERT_EQ(run(), first);
    }
  EXPECT_TRUE(device.is_host() || with_sums > 0);
}

/// Lines of a text.
std::int64_t lines(const std::string& text) { return std::ranges::count(text, '\n'); }

TEST(Convolution, SumsInAnyOrderAreTakenOnlyWhereAskedForAndAreRightToo) {
  Device device;
  for_each_case([&](const ConvBackend& backend, const ConvProblem& p) {
    const ConvInputs in = random_inputs(p, p.n, 6);
    ConvChoices choices;
    ConvSetting setting{.config = {.deterministic = true}, .allows_tf32 = false, .choices = &choices};
    const ConvResult fixed = run_conv(device, *backend.make(device, p, setting), p.n, in, false).result;
    const std::string chosen = choices.text();
    setting.config.deterministic = false;
    const auto any_order = backend.make(device, p, setting);
    const ConvRun got = run_conv(device, *any_order, p.n, in, false);
    expect_near(backend, p, p.n, reference_conv(p, p.n, in, false), got);
    EXPECT_EQ(lines(choices.text()), 2 * lines(chosen)) << "a choice of one kind was taken for the other";
    setting.config.deterministic = true;
    const auto again = backend.make(device, p, setting);
    EXPECT_EQ(run_conv(device, *again, p.n, in, false).result.grad_weight, fixed.grad_weight);
    if (!device.is_host()) return;
    EXPECT_EQ(got.result.y, fixed.y);
    EXPECT_EQ(got.result.grad_x, fixed.grad_x);
    EXPECT_EQ(got.result.grad_weight, fixed.grad_weight);
  });
}

TEST(Convolution, WeightAndBiasMayBeFrozenOneByOne) {
  Device device;
  const ConvProblem p{.n = 4, .h = 6, .w = 6, .c = 8, .k = 12, .r = 3, .s = 3, .stride = 1, .pad = 1, .has_bias = true};
  const ConvInputs in = random_inputs(p, p.n);
  const ConvResult want = reference_conv(p, p.n, in, false);
  for (const ConvBackend& backend : conv_backends()) {
    SCOPED_TRACE(backend.name);
    const auto op = backend.make(device, p, {});
    const TestTensor x(device, p.input(), p.dtype, in.x), grad_y(device, p.output(), p.dtype, in.grad_y);
    const TestTensor grad_weight(device, p.weight(), DType::f32), grad_bias(device, vector_shape(p.k), DType::f32);
    const TestTensor workspace(device, vector_shape(most_workspace(*op)), DType::u8);
    op->grad_weight(device, {.x = x, .grad_y = grad_y, .grad_bias = grad_bias, .workspace = workspace});
    EXPECT_LT(distance(want.grad_bias, grad_bias.numbers()), rounding_of_sums(p.n * 36, DType::f32));
    op->grad_weight(device, {.x = x, .grad_y = grad_y, .grad_weight = grad_weight, .workspace = workspace});
    EXPECT_LT(distance(want.grad_weight, grad_weight.numbers()), rounding_of_sums(p.n * 36, DType::f32));
  }
}

TEST(Convolution, AnInputStoredWithMoreChannelsGivesTheSame) {
  Device device;
  for (const ConvBackend& backend : conv_backends())
    for (const DType dtype : {DType::f16, DType::bf16}) {
      ConvProblem p{.n = 4, .h = 14, .w = 10, .c = 3, .k = 16, .r = 7, .s = 7, .stride = 2, .pad = 3, .dtype = dtype};
      const std::int64_t stored = backend.supports(p) ? backend.input_channels(p) : p.c;
      if (stored == p.c) continue;
      SCOPED_TRACE(backend.name + ": " + text(p));
      const ConvInputs in = random_inputs(p, p.n, 5);
      const ConvResult want = reference_conv(p, p.n, in, false);
      p.input_channels = stored;
      Numbers wide;
      for (std::size_t i = 0; i < in.x.size(); ++i) {
        wide.push_back(in.x[i]);
        if (i % 3 == 2) wide.insert(wide.end(), static_cast<std::size_t>(stored - 3), 0.0);
      }
      const auto op = backend.make(device, p, {});
      const TestTensor x(device, p.input(), dtype, wide), weight(device, p.weight(), dtype, in.weight), grad_y(device, p.output(), dtype, in.grad_y);
      const TestTensor y(device, p.output(), dtype), grad_weight(device, p.weight(), DType::f32);
      const TestTensor workspace(device, vector_shape(most_workspace(*op)), DType::u8);
      op->forward(device, {.x = x, .weight = weight, .y = y, .workspace = workspace});
      op->grad_weight(device, {.x = x, .grad_y = grad_y, .grad_weight = grad_weight, .workspace = workspace});
      EXPECT_LT(distance(want.y, y.numbers()), rounding_of_sums(p.terms(), dtype));
      EXPECT_LT(distance(want.grad_weight, grad_weight.numbers()), rounding_of_sums(p.n * p.p() * p.q(), dtype));
    }
}

TEST(Convolution, TensorsThatDoNotFitAreRefused) {
  Device device;
  const ConvProblem p{.n = 2, .h = 6, .w = 6, .c = 8, .k = 12, .r = 3, .s = 3, .stride = 1, .pad = 1};
  for (const ConvBackend& backend : conv_backends()) {
    SCOPED_TRACE(backend.name);
    const auto op = backend.make(device, p, {});
    const TestTensor three(device, p.input().with_batch(3), p.dtype), x(device, p.input(), p.dtype), weight(device, p.weight(), p.dtype);
    const TestTensor y(device, p.output(), p.dtype), narrow(device, {2, 6, 6, 11}, p.dtype);
    const TestTensor workspace(device, vector_shape(most_workspace(*op)), DType::u8);
    EXPECT_THROW(op->forward(device, {.x = three, .weight = weight, .y = y, .workspace = workspace}), Error);
    EXPECT_THROW(op->forward(device, {.x = x, .weight = weight, .y = narrow, .workspace = workspace}), Error);
    if (op->workspace_bytes() > 0) { EXPECT_THROW(op->forward(device, {.x = x, .weight = weight, .y = y}), Error); }
    const TestTensor grad_weight(device, p.weight(), DType::f32);
    if (op->weight_workspace_bytes() > 0) { EXPECT_THROW(op->grad_weight(device, {.x = x, .grad_y = y, .grad_weight = grad_weight}), Error); }
  }
}

/// The message of the error that make_conv throws.
std::string refusal(const std::string& name, const ConvProblem& problem) {
  Device device;
  BackendConfig config;
  config.conv = name;
  try {
    make_conv(device, {.config = config}, problem);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), exit_bad_input);
    return error.what();
  }
  return "";
}

TEST(MakeConv, ErrorsNameWhatThisBuildHas) {
  const std::string message = refusal("kokos", problems[0]);
  EXPECT_NE(message.find("backends.conv = \"kokos\""), std::string::npos) << message;
  EXPECT_NE(message.find("Did you mean \"kokkos\"?"), std::string::npos) << message;
  for (const ConvBackend& backend : conv_backends()) EXPECT_NE(message.find("\"" + backend.name + "\""), std::string::npos) << message;
}

TEST(MakeConv, ABackendThatCannotSaysSoAndAutoTakesOneThatCan) {
  Device device;
  for (ConvProblem problem : problems)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      problem.dtype = dtype;
      EXPECT_EQ(make_conv(device, {}, problem)->problem(), problem);
      for (const ConvBackend& backend : conv_backends()) {
        const std::string message = refusal(backend.name, problem);
        EXPECT_EQ(message.empty(), backend.supports(problem)) << message;
        if (!message.empty()) { EXPECT_NE(message.find("backends.conv = \"" + backend.name + "\" cannot compute a "), std::string::npos) << message; }
      }
    }
}

TEST(MakeConv, AnImageSmallerThanTheKernelIsRefused) {
  const std::string message = refusal("auto", {.n = 1, .h = 4, .w = 4, .c = 3, .k = 8, .r = 7, .s = 7, .stride = 2, .pad = 1});
  EXPECT_NE(message.find("smaller than the kernel"), std::string::npos) << message;
}

TEST(MakeConv, WhatWasChosenOnADeviceIsPlannedExactlyWithoutOne) {
  Device device, nothing(true);
  for_each_case([&](const ConvBackend& backend, const ConvProblem& p) {
    ConvChoices choices, saved;
    const ConvSetting setting{.config = {}, .allows_tf32 = false, .choices = &choices};
    const auto op = backend.make(device, p, setting);
    saved.read(choices.text());
    const auto planned = backend.make(nothing, p, {.config = {}, .allows_tf32 = false, .choices = &saved}), guessed = backend.make(nothing, p, {});
    EXPECT_TRUE(saved.are_complete());
    EXPECT_EQ(planned->workspace_bytes(), op->workspace_bytes());
    EXPECT_EQ(planned->weight_workspace_bytes(), op->weight_workspace_bytes());
    EXPECT_EQ(planned->sum_parts(p.n), op->sum_parts(p.n));
    EXPECT_GE(guessed->workspace_bytes(), op->workspace_bytes());
    EXPECT_GE(guessed->weight_workspace_bytes(), op->weight_workspace_bytes());
    EXPECT_GE(guessed->sum_parts(p.n), op->sum_parts(p.n));
  });
}

TEST(MakeConv, PlansNeedNoDevice) {
  Device nothing(true);
  for (const ConvProblem& problem : problems) EXPECT_NO_THROW(make_conv(nothing, {}, problem)->workspace_bytes());
}

}  // namespace
}  // namespace lockstep::test
