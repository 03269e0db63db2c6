// conv: convolution and linear layers.  Both are one ConvOp of a backend; a linear layer is a 1x1 convolution on [n, 1, 1, c].
#include "layers/layers.hpp"

namespace lockstep {
namespace {

/// Shapes   x [n, h, w, c], weight [k, r, s, c], bias [k], y [n, p, q, k].  Keeps x.
/// Dtypes   x, y, weight f32 | f16 | bf16; bias and the gradients of weight and bias f32.
class Conv final : public Layer {
 public:
  /// problem: all but n, h, w and dtype, which prepare() learns.
  Conv(std::string kind, const ConvProblem& problem, ParameterSpec weight, ParameterSpec bias, bool flattens)
      : kind_(std::move(kind)), problem_(problem), weight_(std::move(weight)), bias_(std::move(bias)), flattens_(flattens) {}

  std::string kind() const override { return kind_; }
  Shape output(Shapes in) const override {
    const Shape x = seen(in[0]);
    require(x.c == problem_.c, kind_, ": an input of ", x.c, " channels does not fit a weight for ", problem_.c);
    require(x.h + 2 * problem_.pad >= problem_.r && x.w + 2 * problem_.pad >= problem_.s, kind_, ": an input of ", x.h, " x ", x.w,
            " pixels is smaller than the ", problem_.r, " x ", problem_.s, " kernel. Raise augment.size, or choose another model.name.");
    return problem_for(x, problem_.dtype).output();
  }
  std::vector<ParameterSpec> parameters() const override {
    if (problem_.has_bias) return {weight_, bias_};
    return {weight_};
  }
  std::int64_t input_channels(const ConvSetting& setting, DType dtype, Shapes in) const override {
    return flattens_ ? in[0].c : best_input_channels(setting, problem_for(in[0], dtype));
  }
  void prepare(Device& device, const ConvSetting& setting, DType dtype, Shapes in) override {
    problem_.allows_tf32 = setting.allows_tf32;
    problem_.input_channels = seen(in[0]).c > problem_.c ? seen(in[0]).c : 0;
    op_ = make_conv(device, setting, problem_for(seen(in[0]), dtype));
  }
  Needs needs(DType, Shapes) const override { return {.keeps_input = true, .workspace_bytes = op_->workspace_bytes(), .weight_workspace_bytes = op_->weight_workspace_bytes()}; }

  std::int64_t sum_parts(std::int64_t images) const override { return op_->sum_parts(images); }

  void forward(const Forward& f) override {
    if (f.out.shape.n == 0) return;
    ConvArguments a;
    a.x = seen(f.in[0]), a.weight = kernel(f.weights[0]), a.y = f.out, a.workspace = f.workspace;
    if (problem_.has_bias) a.bias = f.weights[1];
    a.sums = f.out_sums;
    op_->forward(f.device, a);
  }
  void backward_input(const Backward& b) override {
    const GradIn& to = b.grad_in[0];
    if (to.mode == GradMode::skip || b.grad_out.shape.n == 0) return;
    ConvArguments a;
    a.weight = kernel(b.weights[0]), a.grad_y = b.grad_out, a.grad_x = seen(to.tensor), a.mode = to.mode, a.workspace = b.workspace;
    op_->grad_input(b.device, a);
  }
  void backward_weight(const Backward& b) override {
    const Tensor grad_bias = problem_.has_bias ? b.grad_weights[1] : Tensor{};
    if (!b.grad_weights[0] && !grad_bias) return;
    if (b.grad_out.shape.n == 0) {
      if (b.weight_mode == GradMode::write)
        for (const Tensor& grad : b.grad_weights)
          if (grad) b.device.zero(grad.data, grad.bytes());
      return;
    }
    ConvArguments a;
    a.x = seen(b.in[0]), a.grad_y = b.grad_out, a.mode = b.weight_mode, a.workspace = b.workspace;
    a.grad_weight = kernel(b.grad_weights[0]), a.grad_bias = grad_bias;
    op_->grad_weight(b.device, a);
  }

 private:
  /// An image batch as this layer sees it: a linear layer takes each image as one long pixel.
  Shape seen(const Shape& x) const { return flattens_ ? Shape{x.n, 1, 1, x.image_size()} : x; }
  Tensor seen(Tensor x) const { return {x.data, seen(x.shape), x.dtype}; }
  Tensor kernel(Tensor weight) const { return {weight.data, problem_.weight(), weight.dtype}; }
  ConvProblem problem_for(const Shape& x, DType dtype) const {
    ConvProblem problem = problem_;
    problem.n = x.n, problem.h = x.h, problem.w = x.w, problem.dtype = dtype;
    return problem;
  }

  std::string kind_;
  ConvProblem problem_;
  ParameterSpec weight_, bias_;
  bool flattens_;
  std::unique_ptr<ConvOp> op_;
};

ParameterSpec bias_spec(std::int64_t channels, const Init& init) {
  return {.name = "bias", .shape = vector_shape(channels), .file_shape = {channels}, .layout = {}, .init = init, .is_norm_or_bias = true};
}

}  // namespace

Value conv(Value x, const std::string& name, const ConvOptions& o) {
  const std::int64_t pad = o.pad < 0 ? (o.kernel - 1) / 2 : o.pad, c = x.channels();
  const ConvProblem problem{.c = c, .k = o.out, .r = o.kernel, .s = o.kernel, .stride = o.stride, .pad = pad, .has_bias = o.bias};
  const ParameterSpec weight{.name = "weight", .shape = problem.weight(), .file_shape = {o.out, c, o.kernel, o.kernel},
                             .layout = {ParameterLayout::convolution, {}}, .init = o.weight_init};
  const Value in[] = {x};
  return x.graph().append<Conv>(in, name, "conv", problem, weight, bias_spec(o.out, o.bias_init), false);
}

Value linear(Value x, const std::string& name, const LinearOptions& o) {
  const Shape image = x.shape().with_batch(1);
  const bool flattens = image.h * image.w > 1;
  const std::int64_t c = image.image_size();
  const ConvProblem problem{.c = c, .k = o.out, .has_bias = o.bias};
  const ParameterSpec weight{.name = "weight", .shape = image.with_batch(o.out), .file_shape = {o.out, c},
                             .layout = flattens ? ParameterLayout{ParameterLayout::flattened_linear, image} : ParameterLayout{}, .init = o.weight_init};
  const Value in[] = {x};
  return x.graph().append<Conv>(in, name, "linear", problem, weight, bias_spec(o.out, o.bias_init), flattens);
}

}  // namespace lockstep
