// cublas_plan: every product that cuBLASLt offers against the float64 loop, and twice for equal bits.  Built with CUDA alone.
#include "backends/cublas_plan.hpp"

#include <gtest/gtest.h>

#include "support/backends_plan.hpp"

namespace lockstep::test {
namespace {

ConvProblem product(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t k) { return {.n = n, .h = h, .w = w, .c = c, .k = k, .r = 1, .s = 1}; }

/// Few and many pixels, so that sums over them are split; channels that fill 16 bytes and such that do not; linear layers.
const std::vector<ConvProblem> problems = {product(2, 7, 5, 64, 256), product(4, 28, 28, 256, 64), product(1, 1, 1, 8, 8), product(3, 3, 3, 12, 20), product(16, 1, 1, 512, 10), product(7, 1, 1, 100, 84)};

/// Of the numbers' root mean square, beyond rounding the result.  f32: of a sum of some thousand terms; TF32 cuts off what is below 10 bits.
double tolerance_of(const ConvProblem& p) { return p.dtype != DType::f32 ? 1e-4 : p.allows_tf32 ? 3e-3 : 3e-6; }

/// product: what is added to something; cuBLAS rounds it first, as cuDNN does.
int check_offers(Device& device, const PlanRequest& request, const ConvInputs& in, const Numbers& want, const Numbers& product = {}) {
  int offers = 0;
  for (const PlanOffer& offer : cublas_offers(request)) {
    const auto plan = offer.make();
    if (!plan) continue;
    ++offers;
    SCOPED_TRACE(plan->name() + (request.adds ? ", added" : "") + ", direction " + std::to_string(static_cast<int>(request.direction)));
    const PlanResult first = run_plan(device, *plan, request, in), second = run_plan(device, *plan, request, in);
    EXPECT_LT(excess(want, first.written, request.problem.dtype, product), tolerance_of(request.problem));
    EXPECT_EQ(first.written, second.written);
    EXPECT_TRUE(first.stayed_inside && second.stayed_inside);
    const auto again = cublas_plan(request, plan->name());
    EXPECT_TRUE(again && again->name() == plan->name() && again->workspace_bytes() == plan->workspace_bytes());
  }
  return offers;
}

TEST(CublasPlan, EveryOfferAgreesWithTheFloat64LoopAndWithItself) {
  Device device;
  for (ConvProblem p : problems)
    for (const auto& [dtype, allows_tf32] : {std::pair(DType::f32, false), {DType::f32, true}, {DType::f16, false}, {DType::bf16, false}}) {
      p.dtype = dtype, p.allows_tf32 = allows_tf32;
      SCOPED_TRACE(text(p));
      const ConvInputs in = random_inputs(p, p.n);
      const ConvResult want = reference_conv(p, p.n, in, false);
      Numbers added = want.grad_x;
      for (std::size_t i = 0; i < added.size(); ++i) added[i] += in.from_x[i];
      PlanRequest request{.problem = p, .most_workspace = std::size_t{1} << 30};
      int offers = check_offers(device, request, in, want.y);
      request.direction = ConvDirection::grad_weight;
      offers += check_offers(device, request, in, want.grad_weight);
      request.direction = ConvDirection::grad_input;
      offers += check_offers(device, request, in, want.grad_x);
      request.adds = true;
      offers += check_offers(device, request, in, added, want.grad_x);
      EXPECT_GT(offers, p.c % 8 == 0 && p.k % 8 == 0 ? 3 : 0);
    }
}

TEST(CublasPlan, OtherConvolutionsAndNamesHaveNone) {
  const PlanRequest request{.problem = product(2, 7, 5, 64, 256), .most_workspace = std::size_t{1} << 30};
  const auto has_offers = [&](auto&& change) {
    PlanRequest other = request;
    change(other);
    return !cublas_offers(other).empty();
  };
  EXPECT_TRUE(has_offers([](PlanRequest&) {}));
  EXPECT_FALSE(has_offers([](PlanRequest& r) { r.problem.stride = 2; }));
  EXPECT_FALSE(has_offers([](PlanRequest& r) { r.problem.pad = 1; }));
  EXPECT_FALSE(has_offers([](PlanRequest& r) { r.problem.r = r.problem.s = 3, r.problem.pad = 1; }));
  EXPECT_FALSE(has_offers([](PlanRequest& r) { r.sums = true; }));
  for (const char* name : {"", "62 3=1 17=4", "cublas", "cublas 1 0 0 0 0 0 0 0 0", "direct rows=8"}) EXPECT_EQ(cublas_plan(request, name), nullptr) << name;
}

}  // namespace
}  // namespace lockstep::test
