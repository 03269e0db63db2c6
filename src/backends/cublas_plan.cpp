#include "backends/cublas_plan.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <source_location>
#include <sstream>
#include <type_traits>

#include "tensor/cuda_check.hpp"

namespace lockstep {
namespace {

/// Fails with the call site.
void check(cublasStatus_t status, std::source_location site = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS) fail_on_gpu(text_of("cuBLAS: ", cublasLtGetStatusString(status), " at ", site.file_name(), ":", site.line()));
}

template <auto destroy>
struct Destroy {
  template <class T> void operator()(T* object) const { destroy(object); }
};
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;
using Library = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// One for all plans of a process; made with the first and gone with the last.
std::shared_ptr<Library> library_of_this_process() {
  static std::weak_ptr<Library> shared;
  std::shared_ptr<Library> library = shared.lock();
  if (!library) {
    cublasLtHandle_t handle = nullptr;
    check(cublasLtCreate(&handle));
    shared = library = std::make_shared<Library>(handle);
  }
  return library;
}

bool is_product(const ConvProblem& p) {
  return p.r == 1 && p.s == 1 && p.stride == 1 && p.pad == 0 && (p.dtype == DType::f32 || p.dtype == DType::f16 || p.dtype == DType::bf16);
}

cudaDataType_t type_of(DType dtype) { return dtype == DType::f16 ? CUDA_R_16F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

Layout layout(std::int64_t rows, std::int64_t columns, DType dtype) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows));
  return Layout(made);
}

/// d = op(a) op(b) (+ d) in cuBLAS' order, where an array [pixels, c] is a matrix of c rows.
struct Product {
  Operation operation;
  Layout a, b, d;
};

Product product_of(const PlanRequest& request) {
  const ConvProblem& p = request.problem;
  const std::int64_t pixels = p.n * p.h * p.w;
  Layout x = layout(p.c, pixels, p.dtype), weight = layout(p.c, p.k, p.dtype), y = layout(p.k, pixels, p.dtype);
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, p.dtype == DType::f32 && p.allows_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Operation operation(made);
  const auto transpose = [&](cublasLtMatmulDescAttributes_t which) {
    const cublasOperation_t yes = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(made, which, &yes, sizeof yes));
  };
  switch (request.direction) {
    case ConvDirection::forward: transpose(CUBLASLT_MATMUL_DESC_TRANSA); return {std::move(operation), std::move(weight), std::move(x), std::move(y)};
    case ConvDirection::grad_input: return {std::move(operation), std::move(weight), std::move(y), std::move(x)};
    case ConvDirection::grad_weight: break;
  }
  transpose(CUBLASLT_MATMUL_DESC_TRANSB);
  return {std::move(operation), std::move(x), std::move(y), std::move(weight)};
}

/// Words of an algorithm, which the same version of the library takes back.
std::string name_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::ostringstream name;
  name << "cublas " << cublasLtGetVersion() << std::hex;
  for (const std::uint64_t word : algorithm.data) name << " " << word;
  return name.str();
}

class ProductPlan final : public ConvPlan {
 public:
  ProductPlan(const PlanRequest& request, Product product, const cublasLtMatmulAlgo_t& algorithm, std::size_t workspace)
      : library_(library_of_this_process()), product_(std::move(product)), algorithm_(algorithm), workspace_bytes_(workspace), direction_(request.direction), adds_(request.adds) {}

  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string name() const override { return name_of(algorithm_); }
  void run(Device& device, const PlanOperands& o) const override {
    const float one = 1, kept = adds_ ? 1 : 0;
    const void* const a = direction_ == ConvDirection::grad_weight ? o.x : o.weight;
    const void* const b = direction_ == ConvDirection::forward ? o.x : o.y;
    void* const d = direction_ == ConvDirection::forward ? o.y : direction_ == ConvDirection::grad_input ? o.x : o.weight;
    check(cublasLtMatmul(library_->get(), product_.operation.get(), &one, a, product_.a.get(), b, product_.b.get(), &kept, d, product_.d.get(), d, product_.d.get(), &algorithm_,
                         o.workspace, workspace_bytes_, static_cast<cudaStream_t>(device.native_stream(device.current()))));
  }

 private:
  std::shared_ptr<Library> library_;
  Product product_;
  cublasLtMatmulAlgo_t algorithm_;
  std::size_t workspace_bytes_;
  ConvDirection direction_;
  bool adds_;
};

/// Parts of a long sum go through scratch in f32 and are added in order; never in place, in the order in which blocks end, nor in 16 bits.
constexpr std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
constexpr std::uint32_t alignment = 16;                        // of all operands, bytes
constexpr std::size_t most_scratch = std::size_t{64} << 20;    // more has not been seen to be of use

}  // namespace

std::vector<PlanOffer> cublas_offers(const PlanRequest& request) {
  if (!is_product(request.problem) || request.sums) return {};
  const std::shared_ptr<Library> library = library_of_this_process();
  const Product product = product_of(request);
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made));
  const Preference preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) { check(cublasLtMatmulPreferenceSetAttribute(made, what, &value, sizeof value)); };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::min(request.most_workspace, most_scratch));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  for (const auto side : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(side, alignment);
  std::array<cublasLtMatmulHeuristicResult_t, 8> results;
  int count = 0;
  if (cublasLtMatmulAlgoGetHeuristic(library->get(), product.operation.get(), product.a.get(), product.b.get(), product.d.get(), product.d.get(), made,
                                     static_cast<int>(results.size()), results.data(), &count) != CUBLAS_STATUS_SUCCESS)
    return {};
  std::vector<PlanOffer> offers;
  for (int i = 0; i < count; ++i)
    if (results[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      offers.push_back({.make = [request, name = name_of(results[static_cast<std::size_t>(i)].algo)] { return cublas_plan(request, name); }});
  return offers;
}

std::unique_ptr<ConvPlan> cublas_plan(const PlanRequest& request, const std::string& name) {
  if (!is_product(request.problem) || request.sums) return nullptr;
  std::istringstream words(name);
  std::string word;
  std::size_t version = 0;
  if (!(words >> word >> version) || word != "cublas" || version != cublasLtGetVersion()) return nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  words >> std::hex;
  for (std::uint64_t& part : algorithm.data)
    if (!(words >> part)) return nullptr;
  Product product = product_of(request);
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(library_of_this_process()->get(), product.operation.get(), product.a.get(), product.b.get(), product.d.get(), product.d.get(),
                                                        &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > std::min(request.most_workspace, most_scratch)) return nullptr;
  return std::make_unique<ProductPlan>(request, std::move(product), algorithm, result.workspaceSize);
}

}  // namespace lockstep
