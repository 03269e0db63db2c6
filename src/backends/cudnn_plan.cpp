#include "backends/cudnn_plan.hpp"

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <source_location>
#include <sstream>

#include "tensor/cuda_check.hpp"

namespace lockstep {
namespace {

/// Fails with the call site and the library's own words.
void check(cudnnStatus_t status, std::source_location site = std::source_location::current()) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> words{};
  cudnnGetLastErrorString(words.data(), words.size());
  fail_on_gpu(text_of("cuDNN: ", cudnnGetErrorString(status), " at ", site.file_name(), ":", site.line(), ": ", words.data()));
}

class CudnnLibrary final : public Cudnn {
 public:
  CudnnLibrary() { check(cudnnCreate(&handle_)); }
  ~CudnnLibrary() override { cudnnDestroy(handle_); }
  std::string version() const override { return std::to_string(cudnnGetVersion()); }
  cudnnHandle_t handle() const { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
};
cudnnHandle_t handle_of(const std::shared_ptr<Cudnn>& cudnn) { return static_cast<CudnnLibrary&>(*cudnn).handle(); }

struct DestroyDescriptor {
  void operator()(void* d) const { cudnnBackendDestroyDescriptor(d); }
};
using Descriptor = std::unique_ptr<void, DestroyDescriptor>;

Descriptor make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  check(cudnnBackendCreateDescriptor(type, &made));
  return Descriptor(made);
}

/// The attribute types of cuDNN that belong to C++ ones.
template <class T> struct AttributeType;
template <> struct AttributeType<std::int64_t> { static constexpr auto value = CUDNN_TYPE_INT64; };
template <> struct AttributeType<float> { static constexpr auto value = CUDNN_TYPE_FLOAT; };
template <> struct AttributeType<double> { static constexpr auto value = CUDNN_TYPE_DOUBLE; };
template <> struct AttributeType<bool> { static constexpr auto value = CUDNN_TYPE_BOOLEAN; };
template <> struct AttributeType<void*> { static constexpr auto value = CUDNN_TYPE_VOID_PTR; };
template <> struct AttributeType<cudnnDataType_t> { static constexpr auto value = CUDNN_TYPE_DATA_TYPE; };
template <> struct AttributeType<cudnnHandle_t> { static constexpr auto value = CUDNN_TYPE_HANDLE; };
template <> struct AttributeType<cudnnConvolutionMode_t> { static constexpr auto value = CUDNN_TYPE_CONVOLUTION_MODE; };
template <> struct AttributeType<cudnnGenStatsMode_t> { static constexpr auto value = CUDNN_TYPE_GENSTATS_MODE; };
template <> struct AttributeType<cudnnBackendHeurMode_t> { static constexpr auto value = CUDNN_TYPE_HEUR_MODE; };
template <> struct AttributeType<cudnnBackendNumericalNote_t> { static constexpr auto value = CUDNN_TYPE_NUMERICAL_NOTE; };
template <> struct AttributeType<cudnnBackendBehaviorNote_t> { static constexpr auto value = CUDNN_TYPE_BEHAVIOR_NOTE; };
template <> struct AttributeType<cudnnBackendKnobType_t> { static constexpr auto value = CUDNN_TYPE_KNOB_TYPE; };

template <class T>
void set(const Descriptor& d, cudnnBackendAttributeName_t name, const std::vector<T>& values) {
  check(cudnnBackendSetAttribute(d.get(), name, AttributeType<T>::value, std::ssize(values), values.data()));
}
template <class T>
void set(const Descriptor& d, cudnnBackendAttributeName_t name, const T& value) {
  check(cudnnBackendSetAttribute(d.get(), name, AttributeType<T>::value, 1, &value));
}
void set(const Descriptor& d, cudnnBackendAttributeName_t name, const Descriptor& value) {
  cudnnBackendDescriptor_t raw = value.get();
  check(cudnnBackendSetAttribute(d.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw));
}
void set(const Descriptor& d, cudnnBackendAttributeName_t name, const std::vector<Descriptor>& values) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& value : values) raw.push_back(value.get());
  check(cudnnBackendSetAttribute(d.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ssize(raw), raw.data()));
}
template <class T>
T get(const Descriptor& d, cudnnBackendAttributeName_t name) {
  T value{};
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(d.get(), name, AttributeType<T>::value, 1, &count, &value));
  return value;
}
/// A descriptor that d holds, as one of our own.
Descriptor get(const Descriptor& d, cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type) {
  Descriptor value = make(type);
  cudnnBackendDescriptor_t raw = value.get();
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(d.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw));
  return value;
}
void finalize(const Descriptor& d) { check(cudnnBackendFinalize(d.get())); }

cudnnDataType_t type_of(DType dtype) {
  return dtype == DType::f16 ? CUDNN_DATA_HALF : dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

/// Which operand is meant, in graphs and when a plan runs.
enum Operand : std::int64_t { operand_x = 1, operand_weight = 2, operand_y = 3, operand_sum = 4, operand_squares = 5 };

/// An array [n, h, w, c] (a weight is [k, r, s, c]) in cuDNN's order of dimensions, n c h w.
Descriptor tensor(Operand operand, const Shape& s, DType dtype) {
  Descriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, type_of(dtype));
  set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, std::vector<std::int64_t>{s.n, s.c, s.h, s.w});
  set(d, CUDNN_ATTR_TENSOR_STRIDES, std::vector<std::int64_t>{s.h * s.w * s.c, 1, s.w * s.c, s.c});
  set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, std::int64_t{operand});
  set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t{16});
  finalize(d);
  return d;
}

Descriptor convolution(const ConvProblem& p) {
  Descriptor d = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const std::vector<std::int64_t> pads = {p.pad, p.pad};
  set(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  set(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
  set(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2});
  set(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, pads);
  set(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, pads);
  set(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, std::vector<std::int64_t>{1, 1});
  set(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, std::vector<std::int64_t>{p.stride, p.stride});
  finalize(d);
  return d;
}

/// The attributes of one direction's operation.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t x, weight, y, convolution, alpha, beta;
};
constexpr OperationNames names_of(ConvDirection direction) {
  switch (direction) {
    case ConvDirection::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case ConvDirection::grad_input:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case ConvDirection::grad_weight: break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

/// Sums of y [n, h, w, k] and of its square over all but the channels, f32.
Descriptor channel_sums(const Descriptor& y, std::int64_t k) {
  Descriptor d = make(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  set(d, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_GENSTATS_SUM_SQSUM);
  set(d, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT);
  set(d, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y);
  set(d, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, tensor(operand_sum, vector_shape(k), DType::f32));
  set(d, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, tensor(operand_squares, vector_shape(k), DType::f32));
  finalize(d);
  return d;
}

Descriptor operation_graph(cudnnHandle_t handle, const PlanRequest& request) {
  const ConvProblem& p = request.problem;
  const OperationNames names = names_of(request.direction);
  const Descriptor y = tensor(operand_y, p.output(), p.dtype);
  std::vector<Descriptor> operations;
  operations.push_back(make(names.type));
  const Descriptor& operation = operations[0];
  set(operation, names.x, tensor(operand_x, p.input(), p.dtype));
  set(operation, names.weight, tensor(operand_weight, p.weight(), p.dtype));
  set(operation, names.y, y);
  set(operation, names.convolution, convolution(p));
  set(operation, names.alpha, 1.0f);
  set(operation, names.beta, request.adds ? 1.0f : 0.0f);
  finalize(operation);
  if (request.sums) operations.push_back(channel_sums(y, p.k));
  Descriptor graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operations);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle);
  finalize(graph);
  return graph;
}

/// An attribute of at most `most` values.
template <class T>
std::vector<T> get_all(const Descriptor& d, cudnnBackendAttributeName_t name, std::size_t most) {
  std::vector<T> values(most);
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(d.get(), name, AttributeType<T>::value, std::ssize(values), &count, values.data()));
  values.resize(static_cast<std::size_t>(count));
  return values;
}

/// Whether an engine keeps to what the request allows: equal bits for equal inputs if asked for, and f32 products of f32 numbers unless TF32 is allowed;
/// and is ready to run: those that compile themselves first take seconds each, and there are others.
enum class Allowed { never, strict, reduced };
Allowed allowed(const Descriptor& engine, const PlanRequest& request) {
  const ConvProblem& p = request.problem;
  const auto behaviors = get_all<cudnnBackendBehaviorNote_t>(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT);
  if (std::ranges::find(behaviors, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) != behaviors.end()) return Allowed::never;
  const auto notes = get_all<cudnnBackendNumericalNote_t>(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  const bool is_forbidden = std::ranges::any_of(notes, [&](cudnnBackendNumericalNote_t note) {
    switch (note) {
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: return p.dtype == DType::f32 && !p.allows_tf32;
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION: return p.dtype == DType::f32;
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC: return request.is_deterministic;
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
      case CUDNN_NUMERICAL_NOTE_FFT:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: return true;
      default: return false;
    }
  });
  if (is_forbidden) return Allowed::never;
  return std::ranges::find(notes, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) == notes.end() ? Allowed::strict : Allowed::reduced;
}

std::string name_of_config(const Descriptor& config, const Descriptor& engine) {
  std::ostringstream name;
  name << get<std::int64_t>(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  std::vector<Descriptor> choices;
  std::vector<cudnnBackendDescriptor_t> raw;   // as many as there can be: asked for their number alone, cuDNN says 0
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) choices.push_back(make(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR)), raw.push_back(choices.back().get());
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ssize(raw), &count, raw.data()));
  choices.resize(static_cast<std::size_t>(count));
  for (const Descriptor& choice : choices)
    name << " " << static_cast<int>(get<cudnnBackendKnobType_t>(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE)) << "="
         << get<std::int64_t>(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
  return name.str();
}

class BackendPlan final : public ConvPlan {
 public:
  /// sums_of: channels whose sums the plan writes; 0: none.
  BackendPlan(std::shared_ptr<Cudnn> cudnn, Descriptor plan, std::string name, std::int64_t sums_of, bool is_strict)
      : cudnn_(std::move(cudnn)), plan_(std::move(plan)), name_(std::move(name)), sums_of_(sums_of), is_strict_(is_strict),
        workspace_bytes_(static_cast<std::size_t>(get<std::int64_t>(plan_, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE))) {}

  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string name() const override { return name_; }
  bool is_strict() const override { return is_strict_; }
  void run(Device& device, const PlanOperands& o) const override {
    std::vector<std::int64_t> ids = {operand_x, operand_weight, operand_y};
    std::vector<void*> pointers = {o.x, o.weight, o.y};
    if (sums_of_ > 0) ids.insert(ids.end(), {operand_sum, operand_squares}), pointers.insert(pointers.end(), {o.sums, o.sums + sums_of_});
    Descriptor pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
    set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers);
    set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, o.workspace);
    finalize(pack);
    const cudnnHandle_t handle = handle_of(cudnn_);
    check(cudnnSetStream(handle, static_cast<cudaStream_t>(device.native_stream(device.current()))));
    check(cudnnBackendExecute(handle, plan_.get(), pack.get()));
  }

 private:
  std::shared_ptr<Cudnn> cudnn_;
  Descriptor plan_;
  std::string name_;
  std::int64_t sums_of_;
  bool is_strict_;
  std::size_t workspace_bytes_;
};

/// Null where the engine turns the problem down after all, or wants too much workspace.
std::unique_ptr<ConvPlan> plan_of(const std::shared_ptr<Cudnn>& cudnn, const Descriptor& config, const Descriptor& engine, std::string name, const PlanRequest& request) {
  Descriptor plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle_of(cudnn));
  set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  if (cudnnBackendFinalize(plan.get()) != CUDNN_STATUS_SUCCESS) return nullptr;
  auto made = std::make_unique<BackendPlan>(cudnn, std::move(plan), std::move(name), request.sums ? request.problem.k : 0,
                                            allowed(engine, request) == Allowed::strict);
  return made->workspace_bytes() <= request.most_workspace ? std::move(made) : nullptr;
}

/// Engine configurations that one of cuDNN's heuristics proposes, best first.
std::vector<Descriptor> proposals(const Descriptor& graph, cudnnBackendHeurMode_t mode) {
  Descriptor heuristics = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  if (cudnnBackendFinalize(heuristics.get()) != CUDNN_STATUS_SUCCESS) return {};
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
  std::vector<Descriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) configs.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)), raw.push_back(configs.back().get());
  if (count > 0) check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()));
  configs.resize(static_cast<std::size_t>(count));
  return configs;
}

/// The engines that write sums add to them in any order, without a note that says so (cuDNN 9.19: equal steps of a ResNet-18 had other bits).
bool has_engines(const PlanRequest& request) { return !request.sums || !request.is_deterministic; }

}  // namespace

std::shared_ptr<Cudnn> Cudnn::of_this_process() {
  static std::weak_ptr<Cudnn> shared;    // a handle costs memory and milliseconds, and a network has a hundred operators
  std::shared_ptr<Cudnn> cudnn = shared.lock();
  if (!cudnn) shared = cudnn = std::make_shared<CudnnLibrary>();
  return cudnn;
}

std::vector<PlanOffer> cudnn_offers(const std::shared_ptr<Cudnn>& cudnn, const PlanRequest& request) {
  if (!has_engines(request)) return {};
  const Descriptor graph = operation_graph(handle_of(cudnn), request);
  std::vector<PlanOffer> offers, reduced;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const Descriptor& config : proposals(graph, mode)) {
      const Descriptor engine = get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
      const Allowed is = allowed(engine, request);
      if (is == Allowed::never) continue;
      const bool is_universal = get<std::int64_t>(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX) == 0;
      (is == Allowed::strict ? offers : reduced).push_back({.is_strict = is == Allowed::strict, .is_last_resort = is_universal, .make = [cudnn, request, name = name_of_config(config, engine)] { return cudnn_plan(cudnn, request, name); }});
    }
    if (mode == CUDNN_HEUR_MODE_A && std::ranges::any_of(offers, [](const PlanOffer& offer) { return offer.make() != nullptr; })) break;   // fallback engines only where there is nothing better
  }
  for (PlanOffer& offer : reduced) offers.push_back(std::move(offer));
  return offers;
}

std::unique_ptr<ConvPlan> cudnn_plan(const std::shared_ptr<Cudnn>& cudnn, const PlanRequest& request, const std::string& name) {
  if (!has_engines(request)) return nullptr;
  std::istringstream words(name);
  std::int64_t index = -1;
  if (!(words >> index)) return nullptr;
  const Descriptor graph = operation_graph(handle_of(cudnn), request);
  Descriptor engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  set(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
  set(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index);
  if (cudnnBackendFinalize(engine.get()) != CUDNN_STATUS_SUCCESS) return nullptr;
  std::vector<Descriptor> choices;
  for (std::string word; words >> word;) {
    int knob = 0;                        // as name_of_config writes them; a name may come from a file
    std::int64_t value = 0;
    const char* const end = word.data() + word.size();
    const auto [sign, error] = std::from_chars(word.data(), end, knob);
    if (error != std::errc() || sign == end || *sign != '=' || std::from_chars(sign + 1, end, value).ptr != end) return nullptr;
    Descriptor choice = make(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    set(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, static_cast<cudnnBackendKnobType_t>(knob));
    set(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
    if (cudnnBackendFinalize(choice.get()) != CUDNN_STATUS_SUCCESS) return nullptr;
    choices.push_back(std::move(choice));
  }
  Descriptor config = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  set(config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!choices.empty()) set(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, choices);
  if (cudnnBackendFinalize(config.get()) != CUDNN_STATUS_SUCCESS) return nullptr;
  return plan_of(cudnn, config, engine, name, request);
}

}  // namespace lockstep
