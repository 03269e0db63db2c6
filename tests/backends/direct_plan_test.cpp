// direct_plan: every variant of lockstep's own convolutions for GPUs against the float64 loop, and twice for equal bits.
#include "backends/direct_plan.hpp"

#include <gtest/gtest.h>

#include "support/backends_plan.hpp"

namespace lockstep::test {
namespace {

ConvProblem layer(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t k, std::int64_t stride) {
  return {.n = n, .h = h, .w = w, .c = c, .k = k, .r = 3, .s = 3, .stride = stride, .pad = 1};
}

ConvProblem first_layer(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t window, std::int64_t stride, std::int64_t pad) {
  return {.n = n, .h = h, .w = w, .c = 4, .k = 64, .r = window, .s = window, .stride = stride, .pad = pad};
}

/// 3x3.  Kinds of kernels: c of 4 and 8 (windows), of 16, 32 and 64; stride 1 and 2.  Odd heights and widths, images of one pixel, narrower than
/// 16 columns (then several lie side by side), wider than them; more channels in than out; more tiles than sums may have parts.
const std::vector<ConvProblem> small_problems = {
    layer(1, 8, 8, 16, 16, 1), layer(5, 8, 8, 64, 64, 1), layer(5, 9, 7, 16, 32, 1),   layer(1, 7, 19, 32, 64, 1), layer(5, 5, 3, 64, 16, 1),
    layer(1, 12, 12, 4, 16, 1), layer(5, 7, 9, 8, 32, 1), layer(2, 1, 1, 16, 16, 1),   layer(1, 17, 33, 16, 16, 1), layer(40, 4, 4, 32, 16, 1),
    layer(1, 8, 8, 16, 16, 2), layer(5, 8, 8, 64, 64, 2), layer(5, 9, 7, 16, 32, 2),   layer(1, 7, 19, 32, 64, 2), layer(5, 5, 3, 64, 16, 2),
    layer(1, 12, 12, 4, 16, 2), layer(5, 7, 9, 8, 32, 2), layer(2, 1, 1, 16, 16, 2),   layer(1, 17, 33, 16, 16, 2), layer(1, 40, 50, 32, 32, 1),
    layer(1100, 2, 16, 4, 16, 1),
};
/// Kinds of kernels: windows of 5 and 7, of 9 and 11; stride 2 and 4; images of even and odd width.  Pads that are even and odd, none and the
/// largest; less pixels than a warp takes, more tiles than the GPU holds blocks, images far wider or higher than the other way.
const std::vector<ConvProblem> small_first_layers = {
    first_layer(1, 32, 32, 7, 2, 3), first_layer(3, 33, 29, 7, 2, 3), first_layer(3, 9, 10, 7, 2, 2),   first_layer(1, 8, 7, 7, 2, 0),   first_layer(1, 5, 150, 7, 2, 3),
    first_layer(1, 63, 63, 11, 4, 2), first_layer(3, 24, 23, 11, 4, 5), first_layer(3, 12, 40, 11, 2, 3), first_layer(2, 9, 8, 5, 2, 2),   first_layer(1, 150, 5, 5, 2, 1),
    first_layer(1, 17, 15, 9, 2, 4), first_layer(2, 13, 20, 9, 4, 3),  first_layer(2, 12, 13, 5, 4, 0),  first_layer(2, 15, 12, 7, 4, 3), first_layer(150, 9, 9, 7, 2, 3),
};
/// The layers of ResNet-20 on CIFAR, all but the last halved, so that the loop takes a second each; the first ones of ResNet-50 and AlexNet for
/// images of half the size.
const std::vector<ConvProblem> whole_batches = {
    layer(128, 32, 16, 4, 16, 1), layer(128, 16, 32, 16, 16, 1), layer(128, 16, 32, 16, 32, 2),
    layer(128, 8, 16, 32, 32, 1), layer(128, 8, 16, 32, 64, 2), layer(128, 8, 8, 64, 64, 1),
    first_layer(3, 112, 96, 7, 2, 3), first_layer(4, 115, 115, 11, 4, 2),
};

/// Of y over pixels and of its square, as forward's sums.
Numbers sums_of(const Numbers& y, std::int64_t k) {
  const auto channels = static_cast<std::size_t>(k);
  Numbers sums(2 * channels);
  for (std::size_t i = 0; i < y.size(); ++i) sums[i % channels] += y[i], sums[channels + i % channels] += y[i] * y[i];
  return sums;
}

/// Of sums in f32 over their root mean square.  Tensor cores cut off what is below f32's last places at each 16 products, some hundred times.
/// Sums of an y that is rounded to 16 bits before would be off by more where there are few pixels.
constexpr double tolerance = 1e-4;

void check_plans(Device& device, const PlanRequest& request, const ConvInputs& in, const Numbers& want, std::size_t most) {
  const ConvProblem& p = request.problem;
  const ConvPlans plans = direct_plans(request, most);
  EXPECT_FALSE(plans.empty());
  for (const auto& plan : plans) {
    SCOPED_TRACE(plan->name() + (request.adds ? ", added" : request.sums ? ", with sums" : "") + ", direction " + std::to_string(static_cast<int>(request.direction)));
    const PlanResult first = run_plan(device, *plan, request, in), second = run_plan(device, *plan, request, in);
    EXPECT_LT(excess(want, first.written, p.dtype), tolerance);
    EXPECT_EQ(first.written, second.written);
    EXPECT_TRUE(first.stayed_inside && second.stayed_inside);
    EXPECT_LE(plan->sum_parts(), 1024);
    if (!request.sums) continue;
    const Numbers sums = sums_of(want, p.k);
    const auto half = [&](const Numbers& numbers, int which) { return Numbers(numbers.begin() + which * p.k, numbers.begin() + (which + 1) * p.k); };
    for (const int which : {0, 1}) EXPECT_LT(distance(half(sums, which), half(first.sums, which)), tolerance) << (which == 0 ? "sum" : "sum of squares");
    EXPECT_EQ(first.sums, second.sums);
  }
}

/// At most so many plans of a kind, and `few` where another kind of call has shown the kernel to be right.
constexpr std::size_t all = 1000, few = 3;

void check_all_directions(ConvProblem p, DType dtype, std::size_t most) {
  Device device;
  p.dtype = dtype;
  SCOPED_TRACE(text(p));
  const ConvInputs in = random_inputs(p, p.n);
  const ConvResult want = reference_conv(p, p.n, in, false);
  const auto request = [&](ConvDirection direction) { return PlanRequest{.problem = p, .direction = direction, .most_workspace = std::size_t{1} << 30}; };
  PlanRequest forward = request(ConvDirection::forward), grad_input = request(ConvDirection::grad_input);
  check_plans(device, forward, in, want.y, few);
  forward.sums = true;
  check_plans(device, forward, in, want.y, most);
  check_plans(device, request(ConvDirection::grad_weight), in, want.grad_weight, most);
  if (p.c < 16) return;
  check_plans(device, grad_input, in, want.grad_x, few);
  grad_input.adds = true;
  Numbers added = want.grad_x;
  for (std::size_t i = 0; i < added.size(); ++i) added[i] += in.from_x[i];
  check_plans(device, grad_input, in, added, most);
}

TEST(DirectPlan, EveryVariantAgreesWithTheFloat64LoopAndWithItself) {
  if (is_host_build()) GTEST_SKIP() << no_gpu;
  for (const auto* problems : {&small_problems, &small_first_layers})
    for (const ConvProblem& problem : *problems)
      for (const DType dtype : {DType::f16, DType::bf16}) check_all_directions(problem, dtype, dtype == DType::f16 ? all : few);
}

TEST(DirectPlan, ThePromisingOnesAreRightForWholeBatches) {
  if (is_host_build()) GTEST_SKIP() << no_gpu;
  for (std::size_t i = 0; i < whole_batches.size(); ++i) check_all_directions(whole_batches[i], i % 2 == 0 ? DType::f16 : DType::bf16, few);
}

TEST(DirectPlan, APlanIsFoundByItsName) {
  if (is_host_build()) GTEST_SKIP() << no_gpu;
  PlanRequest request{.problem = layer(4, 8, 8, 32, 32, 1), .sums = true, .most_workspace = std::size_t{1} << 30};
  request.problem.dtype = DType::f16;
  const ConvPlans plans = direct_plans(request);
  ASSERT_FALSE(plans.empty());
  EXPECT_LE(plans.size(), 6u);
  for (const auto& plan : plans) {
    EXPECT_EQ(plan->name().find('\t'), std::string::npos);
    const auto again = direct_plan(request, plan->name());
    ASSERT_NE(again, nullptr) << plan->name();
    EXPECT_EQ(again->name(), plan->name());
    EXPECT_EQ(again->workspace_bytes(), plan->workspace_bytes());
  }
  EXPECT_EQ(direct_plan(request, "62 3=1 17=4"), nullptr);
}

TEST(DirectPlan, OtherConvolutionsHaveNone) {
  if (is_host_build()) GTEST_SKIP() << no_gpu;
  PlanRequest request{.problem = layer(4, 8, 8, 32, 32, 1), .most_workspace = std::size_t{1} << 30};
  const auto has_plans = [&](auto&& change) {
    PlanRequest other = request;
    other.problem.dtype = DType::f16;
    change(other);
    return !direct_plans(other).empty();
  };
  EXPECT_TRUE(has_plans([](PlanRequest&) {}));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.dtype = DType::f32; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.r = r.problem.s = 1, r.problem.pad = 0; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.stride = 3; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.pad = 0; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.c = 24; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.k = 128; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.has_bias = true; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.c = 8, r.direction = ConvDirection::grad_input; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.direction = ConvDirection::grad_weight, r.most_workspace = 0; }));   // it sums in memory

  request.problem = first_layer(4, 32, 32, 7, 2, 3);
  EXPECT_TRUE(has_plans([](PlanRequest&) {}));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.direction = ConvDirection::grad_input; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.stride = 1; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.s = 5; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.r = r.problem.s = 8; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.pad = 4; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.c = 8; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.k = 96; }));
  EXPECT_FALSE(has_plans([](PlanRequest& r) { r.problem.h = r.problem.w = 3, r.problem.pad = 1; }));   // smaller than a window
}

}  // namespace
}  // namespace lockstep::test
