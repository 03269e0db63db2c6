// cublas_plan: 1x1 convolutions of stride 1 (linear layers among them) as products of matrices, by cuBLASLt.
// In: a request.  Out: the plans that fit it, all sums in f32, without such whose order may change.
// f32 without TF32 gains most: cuDNN 9.19 has only engines there that reorder NHWC arrays first.
#pragma once
#include "backends/conv_plan.hpp"

namespace lockstep {

/// Plans that cuBLASLt offers, its own favourite first; none where the problem is of another kind.
std::vector<PlanOffer> cublas_offers(const PlanRequest& request);
/// The plan of that name, "cublas 130000 ..." with the library's version and its algorithm's words; null where this library is another, or cannot.
std::unique_ptr<ConvPlan> cublas_plan(const PlanRequest& request, const std::string& name);

}  // namespace lockstep
