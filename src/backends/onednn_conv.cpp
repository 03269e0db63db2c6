// onednn_conv: convolutions on a CPU by oneDNN 3, in f32, and in bf16 where the CPU has it.
// In: NHWC tensors, weights [k, r, s, c].  Out: the same bits for the same batch, threads and CPU.
// Method: activations stay NHWC, as fast as oneDNN's blocked formats here; weights are packed into the format that a primitive asks for at
// each call, since they change each step.  With stride 1 the gradient of the input is itself a forward convolution of the gradient with the
// weights turned around, which, unlike oneDNN's own, can add to what is there.  A linear layer is a matrix product on tensors as they lie.
// Primitives are made at their first use for a batch and kept; their scratch lies in the workspace.
#include <dnnl_debug.h>

#include <algorithm>
#include <dnnl.hpp>
#include <initializer_list>
#include <map>
#include <source_location>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "backends/chunk_sums.hpp"
#include "backends/conv.hpp"
#include "tensor/views.hpp"

namespace lockstep {

/// Where a primitive wants the weight (k, r, s, c): at k[k] + r[r] + s[s] + c[c].  oneDNN's blocked formats cut each dimension by itself.
struct WeightPlaces {
  std::vector<std::int64_t> k, r, s, c;
};

/// to[places] = weight [k, r, s, c].
template <class T>
void pack_weight(const Device& device, Tensor weight, const WeightPlaces& places, T* to) {
  const T* const from = weight.as<T>();
  const std::int64_t *const at_k = places.k.data(), *const at_r = places.r.data(), *const at_s = places.s.data(), *const at_c = places.c.data();
  const std::int64_t r = weight.shape.h, s = weight.shape.w, c = weight.shape.c;
  Kokkos::parallel_for("conv.pack_weight", range(device, weight.shape.n * r * s), KOKKOS_LAMBDA(std::int64_t i) {
    T* const row = to + at_k[i / (r * s)] + at_r[i / s % r] + at_s[i % s];
    for (std::int64_t j = 0; j < c; ++j) row[at_c[j]] = from[i * c + j];
  });
}

/// weight [k, r, s, c] = from[places], or is added to what is there.
template <class To>
void unpack_weight(const Device& device, const float* from, const WeightPlaces& places, Tensor weight, bool adds) {
  To* const to = weight.as<To>();
  const std::int64_t *const at_k = places.k.data(), *const at_r = places.r.data(), *const at_s = places.s.data(), *const at_c = places.c.data();
  const std::int64_t r = weight.shape.h, s = weight.shape.w, c = weight.shape.c;
  Kokkos::parallel_for("conv.unpack_weight", range(device, weight.shape.n * r * s), KOKKOS_LAMBDA(std::int64_t i) {
    const float* const row = from + at_k[i / (r * s)] + at_r[i / s % r] + at_s[i % s];
    for (std::int64_t j = 0; j < c; ++j) to[i * c + j] = To(adds ? static_cast<float>(to[i * c + j]) + row[at_c[j]] : row[at_c[j]]);
  });
}

/// to += from.  All [any], equal.
template <class T>
void add_gradient(const Device& device, const float* from, Tensor to) {
  T* const out = to.as<T>();
  Kokkos::parallel_for("conv.add_gradient", range(device, to.size()), KOKKOS_LAMBDA(std::int64_t i) {
    out[i] = T(static_cast<float>(out[i]) + from[i]);
  });
}

/// to = from, rounded.  All [any], equal.
template <class T>
void round_gradient(const Device& device, const float* from, Tensor to) {
  T* const out = to.as<T>();
  Kokkos::parallel_for("conv.round_gradient", range(device, to.size()), KOKKOS_LAMBDA(std::int64_t i) { out[i] = T(from[i]); });
}

namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

/// Runs f.  What oneDNN throws is thrown as ours, with its words and the call site.
template <class F>
auto checked(F&& f, std::source_location site = std::source_location::current()) {
  try {
    return f();
  } catch (const dnnl::error& error) {
    fail_with(exit_internal, "oneDNN: ", dnnl_status2str(error.status), ": ", error.what(), " at ", site.file_name(), ":", site.line());
  }
}

/// Offsets of the indices of one dimension in a blocked format, in elements.
std::vector<std::int64_t> places_of(const Desc& desc, int dimension) {
  const Dims blocks = desc.get_inner_blks(), of = desc.get_inner_idxs(), strides = desc.get_strides();
  std::vector<std::int64_t> places(static_cast<std::size_t>(desc.get_dims()[static_cast<std::size_t>(dimension)]));
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::int64_t rest = static_cast<std::int64_t>(i), stride = 1;
    for (std::size_t b = blocks.size(); b-- > 0; stride *= blocks[b])   // innermost first
      if (of[b] == dimension) places[i] += rest % blocks[b] * stride, rest /= blocks[b];
    places[i] += rest * strides[static_cast<std::size_t>(dimension)];
  }
  return places;
}

enum class Kind { forward, grad_input, grad_weight };

/// What a call needs, before oneDNN generates any code for it.
struct Plan {
  dnnl::primitive_desc_base description;
  int packed = 0;                  // the argument that is a packed weight or its gradient; 0: the weight is taken as it lies
  std::size_t addend_bytes = 0;    // of a gradient that is computed aside, in f32, and added
  bool turned = false;             // the weight is packed with k and c exchanged, r and s reversed

  Desc desc(int argument) const { return description.query_md(dnnl::query::exec_arg_md, argument); }
  // Workspace: packed weight, addend, the primitive's own scratch.
  static std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
  std::size_t addend_at() const { return packed ? aligned(desc(packed).get_size()) : 0; }
  std::size_t scratch_at() const { return addend_at() + aligned(addend_bytes); }
  std::size_t bytes() const { return aligned(scratch_at() + desc(DNNL_ARG_SCRATCHPAD).get_size()); }
};

/// A plan's primitive.  Its memories get their pointers at each run.
class Pass {
 public:
  Pass(Plan p, const dnnl::engine& engine) : plan(std::move(p)), bytes(plan.bytes()), engine_(engine), primitive_(plan.description.get()) {
    if (!plan.packed) return;
    const Desc desc = plan.desc(plan.packed);
    if (desc.get_format_kind() != dnnl::memory::format_kind::blocked) fail_with(exit_internal, "oneDNN asks for an opaque format of weights");
    places = {.k = places_of(desc, plan.turned ? 1 : 0), .r = places_of(desc, 2), .s = places_of(desc, 3), .c = places_of(desc, plan.turned ? 0 : 1)};
    if (plan.turned) std::ranges::reverse(places.r), std::ranges::reverse(places.s);
    is_padded = desc.get_padded_dims() != desc.get_dims();
  }

  void run(dnnl::stream& stream, std::initializer_list<std::pair<int, void*>> pointers) {
    for (const auto& [argument, pointer] : pointers) {
      const auto [it, is_new] = memories_.try_emplace(argument);
      if (is_new) it->second = dnnl::memory(plan.desc(argument), engine_, DNNL_MEMORY_NONE);
      it->second.set_data_handle(pointer);
    }
    primitive_.execute(stream, memories_);
  }

  Plan plan;
  std::size_t bytes;               // of workspace
  WeightPlaces places;
  bool is_padded = false;          // the packed weight has elements that belong to no channel and must be zero

 private:
  dnnl::engine engine_;
  dnnl::primitive primitive_;
  std::unordered_map<int, dnnl::memory> memories_;
};

class OnednnConv final : public ConvOp {
 public:
  explicit OnednnConv(const ConvProblem& problem)
      : problem_(problem),
        type_(problem.dtype == DType::f32 ? Type::f32 : Type::bf16),
        is_linear_(problem.h * problem.w * problem.r * problem.s == 1 && problem.pad == 0),
        turns_weight_(problem.stride == 1 && problem.pad < problem.r && problem.pad < problem.s),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_) {
    const std::int64_t n = std::max<std::int64_t>(problem.n, 1);
    workspace_bytes_ = bias_workspace_bytes(problem);
    for (const Kind kind : {Kind::forward, Kind::grad_input, Kind::grad_weight})
      for (const bool adds : {false, true}) workspace_bytes_ = std::max(workspace_bytes_, plan(kind, n, adds).bytes() + unrounded_bytes());
  }

  const ConvProblem& problem() const override { return problem_; }
  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::size_t weight_workspace_bytes() const override { return workspace_bytes_; }

  void forward(Device& device, const ConvArguments& a) override {
    const std::int64_t n = checked_batch(*this, a);
    if (n == 0) return;
    checked([&] {
      Pass& pass = made(Kind::forward, n, false);
      std::byte* const room = room_for(device, pass, a.workspace);
      const auto to = std::pair<int, void*>{DNNL_ARG_DST, a.y.data}, scratch = scratchpad(pass, room);
      void* const weight = packed(device, pass, a.weight, room);
      if (problem_.has_bias) pass.run(stream_, {{DNNL_ARG_SRC, a.x.data}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_BIAS, a.bias.data}, to, scratch});
      else pass.run(stream_, {{DNNL_ARG_SRC, a.x.data}, {DNNL_ARG_WEIGHTS, weight}, to, scratch});
    });
  }

  void grad_input(Device& device, const ConvArguments& a) override {
    const std::int64_t n = checked_batch(*this, a);
    if (n == 0) return;
    checked([&] {
      Pass& pass = made(Kind::grad_input, n, a.mode == GradMode::add);
      std::byte* const room = room_for(device, pass, a.workspace);
      void* const weight = packed(device, pass, a.weight, room);
      if (is_linear_ || turns_weight_)
        return pass.run(stream_, {{DNNL_ARG_SRC, a.grad_y.data}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DST, a.grad_x.data}, scratchpad(pass, room)});
      const bool adds = pass.plan.addend_bytes > 0;
      void* const to = adds ? room + pass.plan.addend_at() : a.grad_x.data;
      pass.run(stream_, {{DNNL_ARG_DIFF_DST, a.grad_y.data}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DIFF_SRC, to}, scratchpad(pass, room)});
      if (adds) dispatch(problem_.dtype, [&]<class T>(T) { add_gradient<T>(device, static_cast<const float*>(to), a.grad_x); });
    });
  }

  void grad_weight(Device& device, const ConvArguments& a) override {
    const std::int64_t n = checked_batch(*this, a);
    const bool adds = a.mode == GradMode::add;
    if (n == 0) {
      for (const Tensor& grad : {a.grad_weight, a.grad_bias})
        if (grad && !adds) device.zero(grad.data, grad.bytes());
      return;
    }
    if (a.grad_weight) checked([&] {
      Pass& pass = made(Kind::grad_weight, n, adds);
      std::byte* const room = room_for(device, pass, a.workspace);
      if (is_linear_) {
        const bool is_narrow = a.grad_weight.dtype != DType::f32;
        void* const to = is_narrow ? room + pass.bytes : a.grad_weight.data;
        pass.run(stream_, {{DNNL_ARG_SRC, a.grad_y.data}, {DNNL_ARG_WEIGHTS, a.x.data}, {DNNL_ARG_DST, to}, scratchpad(pass, room)});
        if (is_narrow) dispatch(problem_.dtype, [&]<class T>(T) { round_gradient<T>(device, static_cast<const float*>(to), a.grad_weight); });
        return;
      }
      pass.run(stream_, {{DNNL_ARG_SRC, a.x.data}, {DNNL_ARG_DIFF_DST, a.grad_y.data}, {DNNL_ARG_DIFF_WEIGHTS, room}, scratchpad(pass, room)});
      dispatch(a.grad_weight.dtype, [&]<class To>(To) { unpack_weight<To>(device, reinterpret_cast<const float*>(room), pass.places, a.grad_weight, adds); });
    });
    if (a.grad_bias)
      dispatch(problem_.dtype, [&]<class T>(T) { conv_grad_bias<T>(device, problem_, a.grad_y, a.grad_bias, a.workspace.as<float>(), adds); });
  }

 private:
  Plan plan(Kind kind, std::int64_t n, bool adds) const {
    // Only these sum in the result's own memory; what others compute aside is added by our kernels.
    const bool sums = adds && (is_linear_ || (kind == Kind::grad_input && turns_weight_));
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);     // f32 stays f32, whatever the environment says
    if (sums) {
      dnnl::post_ops sum;
      sum.append_sum(1.f);
      attributes.set_post_ops(sum);
    }
    return is_linear_ ? product(kind, n, attributes) : convolution(kind, n, adds, attributes);
  }

  /// x [n, c], weight [k, c], y [n, k]: y = x weight^T, grad_x = grad_y weight, grad_weight = grad_y^T x.
  Plan product(Kind kind, std::int64_t n, const dnnl::primitive_attr& attributes) const {
    const std::int64_t c = problem_.c, k = problem_.k;
    const Desc x({n, c}, type_, Tag::ab), y({n, k}, type_, Tag::ab), bias({1, k}, Type::f32, Tag::ab);
    using Product = dnnl::matmul::primitive_desc;
    if (kind == Kind::grad_input) return {Product(engine_, y, Desc({k, c}, type_, Tag::ab), x, attributes)};
    if (kind == Kind::grad_weight) return {Product(engine_, Desc({k, n}, type_, Tag::ba), x, Desc({k, c}, Type::f32, Tag::ab), attributes)};
    const Desc weight({c, k}, type_, Tag::ba);
    return {problem_.has_bias ? Product(engine_, x, weight, bias, y, attributes) : Product(engine_, x, weight, y, attributes)};
  }

  Plan convolution(Kind kind, std::int64_t n, bool adds, const dnnl::primitive_attr& attributes) const {
    const ConvProblem& o = problem_;
    const Desc x({n, o.c, o.h, o.w}, type_, Tag::nhwc), y({n, o.k, o.p(), o.q()}, type_, Tag::nhwc), bias({o.k}, Type::f32, Tag::a);
    const Dims strides = {o.stride, o.stride}, pads = {o.pad, o.pad};
    constexpr auto direct = dnnl::algorithm::convolution_direct;
    using Forward = dnnl::convolution_forward::primitive_desc;
    const auto forward = [&](const Desc& from, const Dims& weight, const Desc* with_bias, const Desc& to, const Dims& padding, const dnnl::primitive_attr& attr) {
      const Desc any(weight, type_, Tag::any);
      constexpr auto training = dnnl::prop_kind::forward_training;
      return with_bias ? Forward(engine_, training, direct, from, any, *with_bias, to, strides, padding, padding, attr)
                       : Forward(engine_, training, direct, from, any, to, strides, padding, padding, attr);
    };
    if (kind == Kind::forward) return {forward(x, {o.k, o.c, o.r, o.s}, o.has_bias ? &bias : nullptr, y, pads, attributes), DNNL_ARG_WEIGHTS};
    if (kind == Kind::grad_input && turns_weight_)
      return {.description = forward(y, {o.c, o.k, o.r, o.s}, nullptr, x, {o.r - 1 - o.pad, o.s - 1 - o.pad}, attributes), .packed = DNNL_ARG_WEIGHTS, .turned = true};

    const Forward hint = forward(x, {o.k, o.c, o.r, o.s}, nullptr, y, pads, attributes);
    if (kind == Kind::grad_weight)
      return {dnnl::convolution_backward_weights::primitive_desc(engine_, direct, x, Desc({o.k, o.c, o.r, o.s}, Type::f32, Tag::any), y, strides, pads, pads, hint,
                                                                 attributes),
              DNNL_ARG_DIFF_WEIGHTS};
    using GradInput = dnnl::convolution_backward_data::primitive_desc;
    const Desc grad_x({n, o.c, o.h, o.w}, adds ? Type::f32 : type_, Tag::nhwc);
    const auto first = [&] { return GradInput(engine_, direct, grad_x, Desc({o.k, o.c, o.r, o.s}, type_, Tag::any), y, strides, pads, pads, hint, attributes); };
    GradInput chosen = first();
    // The kernel that oneDNN puts first for a stride needs up to 1.6 times the time of the next for few channels, and no less for many.
    if (std::string_view(chosen.impl_info_str()).starts_with("brgconv_strided"))
      if (GradInput next = first(); next.next_impl() && std::string_view(next.impl_info_str()).starts_with("jit")) chosen = next;
    return {chosen, DNNL_ARG_WEIGHTS, adds ? grad_x.get_size() : 0};
  }

  Pass& made(Kind kind, std::int64_t n, bool adds) {
    const auto key = std::tuple(kind, n, adds);
    const auto found = passes_.find(key);
    return found != passes_.end() ? found->second : passes_.emplace(key, Pass(plan(kind, n, adds), engine_)).first->second;
  }
  /// Behind a linear layer's own scratch: a gradient of its weights that is to be rounded.
  std::size_t unrounded_bytes() const { return is_linear_ && type_ != Type::f32 ? static_cast<std::size_t>(problem_.weight().size()) * sizeof(float) : 0; }
  /// The caller's workspace, or memory of our own if a smaller batch's primitive should need more than the largest batch's.
  std::byte* room_for(Device& device, const Pass& pass, const Tensor& workspace) {
    const std::size_t bytes = pass.bytes + unrounded_bytes();
    if (bytes <= workspace.bytes()) return workspace.as<std::byte>();
    if (bytes > spare_.bytes()) spare_ = device.allocate(bytes);
    return static_cast<std::byte*>(spare_.data());
  }
  static std::pair<int, void*> scratchpad(const Pass& pass, std::byte* room) { return {DNNL_ARG_SCRATCHPAD, room + pass.plan.scratch_at()}; }
  /// The weight as the primitive wants it: at the start of `room`, or where it lies.
  void* packed(Device& device, const Pass& pass, const Tensor& weight, std::byte* room) const {
    if (!pass.plan.packed) return weight.data;
    if (pass.is_padded) device.zero(room, pass.plan.addend_at());
    dispatch(weight.dtype, [&]<class T>(T) { pack_weight<T>(device, weight, pass.places, reinterpret_cast<T*>(room)); });
    return room;
  }

  ConvProblem problem_;
  Type type_;
  bool is_linear_, turns_weight_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::size_t workspace_bytes_ = 0;
  std::map<std::tuple<Kind, std::int64_t, bool>, Pass> passes_;
  Allocation spare_;
};

/// f32 on every CPU; bf16 where instructions for it keep oneDNN from its slow reference.
bool is_supported(const ConvProblem& problem) {
  if (!runs_on_host || problem.dtype == DType::f16) return false;
  if (problem.dtype == DType::f32) return true;
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa()), bf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return problem.dtype == DType::bf16 && (isa & bf16) == bf16;
}

}  // namespace

ConvBackend onednn_conv_backend() {
  return {.name = "onednn",
          .supports = is_supported,
          .make = [](Device&, const ConvProblem& problem, const ConvSetting&) -> std::unique_ptr<ConvOp> { return checked([&] { return std::make_unique<OnednnConv>(problem); }); }};
}

}  // namespace lockstep
