// conv: which libraries of convolutions this build has, and which of them computes a given one.
#include "backends/conv.hpp"

#include <algorithm>

namespace lockstep {

std::string text(const ConvProblem& problem) {
  return text_of(problem.r, "x", problem.s, " convolution of ", name_of(problem.dtype), " ", text(problem.input()), " to ", problem.k,
                 " channels, stride ", problem.stride, ", pad ", problem.pad, problem.has_bias ? ", with bias" : "");
}

std::int64_t checked_batch(const ConvOp& op, const ConvArguments& a) {
  const ConvProblem& problem = op.problem();
  std::int64_t batch = -1;
  const auto check = [&](const char* name, const Tensor& tensor, const Shape& shape, DType dtype) {
    if (!tensor) return;
    if (tensor.shape != shape || tensor.dtype != dtype)
      fail_with(exit_internal, name, " is ", name_of(tensor.dtype), " ", text(tensor.shape), ", not ", name_of(dtype), " ", text(shape), ", in a ", text(problem));
  };
  const auto check_images = [&](const char* name, const Tensor& tensor, const Shape& shape) {
    if (!tensor) return;
    if (batch < 0) batch = tensor.shape.n;
    check(name, tensor, shape.with_batch(batch), problem.dtype);
  };
  check_images("x", a.x, problem.input());
  check_images("y", a.y, problem.output());
  check_images("grad_x", a.grad_x, problem.input());
  check_images("grad_y", a.grad_y, problem.output());
  check("weight", a.weight, problem.weight(), problem.dtype);
  check("bias", a.bias, vector_shape(problem.k), DType::f32);
  check("grad_weight", a.grad_weight, problem.weight(), a.mode == GradMode::write && a.grad_weight.dtype == problem.dtype ? problem.dtype : DType::f32);
  check("grad_bias", a.grad_bias, vector_shape(problem.k), DType::f32);
  if (a.sums && a.sums.size() % (2 * problem.k) != 0) fail_with(exit_internal, "sums of ", a.sums.size(), " elements do not fit a ", text(problem));
  if (batch > problem.n) fail_with(exit_internal, batch, " images are too many for a ", text(problem));
  const std::size_t needed = a.grad_weight || a.grad_bias ? op.weight_workspace_bytes() : op.workspace_bytes();
  if (a.workspace.bytes() < needed)
    fail_with(exit_internal, "a workspace of ", a.workspace.bytes(), " bytes is too small for a ", text(problem), ", which needs ", needed);
  return batch < 0 ? 0 : batch;
}

std::span<const ConvBackend> conv_backends() {
  static const ConvBackend backends[] = {
#ifdef LOCKSTEP_HAS_CUDNN
      cudnn_conv_backend(),
#endif
#ifdef LOCKSTEP_HAS_ONEDNN
      onednn_conv_backend(),
#endif
      kokkos_conv_backend(),
  };
  return backends;
}

namespace {

/// The library that setting asks for, or the first that can; null where it cannot, or where there is none of that name.
const ConvBackend* find_backend(const ConvSetting& setting, const ConvProblem& problem) {
  for (const ConvBackend& backend : conv_backends())
    if ((setting.config.conv == "auto" || setting.config.conv == backend.name) && backend.supports(problem)) return &backend;
  return nullptr;
}

}  // namespace

std::int64_t best_input_channels(const ConvSetting& setting, const ConvProblem& problem) {
  ConvProblem set = problem;
  set.allows_tf32 = setting.allows_tf32;
  const ConvBackend* backend = find_backend(setting, set);
  return backend ? backend->input_channels(set) : set.c;
}

std::unique_ptr<ConvOp> make_conv(Device& device, const ConvSetting& setting, const ConvProblem& problem) {
  require(problem.h + 2 * problem.pad >= problem.r && problem.w + 2 * problem.pad >= problem.s, "a ", text(problem),
          " has no output: the padded image is smaller than the kernel. Raise augment.size.");
  if (const ConvBackend* backend = find_backend(setting, problem)) return backend->make(device, problem, setting);
  const std::string& wanted = setting.config.conv;
  std::vector<std::string> names = {"auto"};
  std::string list;
  for (const ConvBackend& backend : conv_backends()) {
    require(wanted != backend.name, "backends.conv = \"", backend.name, "\" cannot compute a ", text(problem), ". Set it to \"auto\".");
    names.push_back(backend.name);
    list += (list.empty() ? "\"" : ", \"") + backend.name + "\"";
  }
  fail("backends.conv = \"", wanted, "\": this build has ", list, ".", did_you_mean(wanted, names), " Pick one of them, or \"auto\".");
}

}  // namespace lockstep
