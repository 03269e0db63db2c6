// pointwise: layers whose output element depends on one element of each input: relu, add, dropout, and the option A shortcut.
#include "base/random.hpp"
#include "layers/lanes.hpp"
#include "layers/layers.hpp"
#include "tensor/pack.hpp"

namespace lockstep {

/// An array's elements in lines of 64, if that leaves no rest: what concerns each element alone does not care about channels.
inline RowCut cut_elements(const Shape& shape) {
  constexpr std::int64_t line = 64, lines_each = 8;
  return shape.size() % line == 0 ? RowCut{shape.size() / line, line, lines_each} : cut_rows(shape, lines_each);
}

/// y = max(x, 0); a NaN stays one.  y may be x.
template <class T>
struct ReluForward {
  using Element = T;
  const T* x;
  T* y;
  std::int64_t c;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    for_rows(begin, end, [&]<int rows>(std::int64_t row, std::integral_constant<int, rows>) {
      Raw<width, T> xs[rows];
      for (int i = 0; i < rows; ++i) xs[i] = load_raw<width>(x + (row + i) * c + channel);
      for (int i = 0; i < rows; ++i) store(y + (row + i) * c + channel, positive_part(xs[i].lanes()));
    });
  }
};

/// grad_x = or += grad_y where y > 0 (or is NaN), else 0.  grad_x may be grad_y.
template <class T>
struct ReluBackward {
  using Element = T;
  const T *y, *grad_y;
  T* grad_x;
  bool adds;
  std::int64_t c;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    for_rows(begin, end, [&]<int rows>(std::int64_t row, std::integral_constant<int, rows>) {
      Raw<width, T> ys[rows], gs[rows];
      for (int i = 0; i < rows; ++i) ys[i] = load_raw<width>(y + (row + i) * c + channel), gs[i] = load_raw<width>(grad_y + (row + i) * c + channel);
      for (int i = 0; i < rows; ++i) {
        T* const to = grad_x + (row + i) * c + channel;
        const Lanes<width> g = where_positive(ys[i].lanes(), gs[i].lanes());
        store(to, adds ? load<width>(to) + g : g);
      }
    });
  }
};

/// y = a + b.  y may be a or b.
template <class T>
struct AddForward {
  using Element = T;
  const T *a, *b;
  T* y;
  std::int64_t c;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t at = row * c + channel;
      store(y + at, load<width>(a + at) + load<width>(b + at));
    }
  }
};
template <class T>
void add_forward(const Device& device, Tensor a, Tensor b, Tensor y) {
  const RowCut cut = cut_elements(y.shape);
  for_each_block("add.forward", device, cut, AddForward<T>{a.as<T>(), b.as<T>(), y.as<T>(), cut.c});
}

/// What dropout's kernel needs beside its tensors.  Four neighbouring elements of the global batch share one Philox block.
struct DropoutNumbers {
  const StepState* step;
  std::int64_t image_size;
  float p;
  std::uint32_t index;
};

/// y = x / (1 - p) where a number of the element's own is >= p, else 0; or y += that.  All [n, h, w, c], equal; y may be x.
/// The number depends on the element's place in the global batch: not on ranks, micro-batches or threads.
template <class T>
void dropout_apply(const Device& device, Tensor in, Tensor out, DropoutNumbers numbers, bool adds) {
  const std::int64_t size = in.size();
  const auto x = flat<T>(in), y = flat<T>(out);
  Kokkos::parallel_for("dropout", range(device, size == 0 ? 0 : size / 4 + 2), KOKKOS_LAMBDA(std::int64_t item) {
    const StepState& step = *numbers.step;
    const std::int64_t first = step.first_sample * numbers.image_size, quad = first / 4 + item;
    const Uniform4 u = uniform4(static_cast<std::uint64_t>(step.seed), Purpose::dropout, static_cast<std::uint64_t>(step.step),
                                static_cast<std::uint64_t>(quad), numbers.index);
    for (int lane = 0; lane < 4; ++lane) {
      const std::int64_t i = 4 * quad + lane - first;
      if (i < 0 || i >= size) continue;
      const float kept = u[lane] >= numbers.p ? static_cast<float>(x(i)) / (1 - numbers.p) : 0.f;
      y(i) = T(adds ? static_cast<float>(y(i)) + kept : kept);
    }
  });
}

/// y[n, p, q, before + k] = x[n, stride p, stride q, k]; the other channels are 0.
template <class T, int width>
void subsample_pad_forward(const Device& device, Tensor in, Tensor out, std::int64_t stride, std::int64_t before) {
  using Some = Pack<T, width>;
  const Shape xs = in.shape, ys = out.shape;
  const T* x = in.as<T>();
  T* y = out.as<T>();
  const std::int64_t each = runs_on_host ? ys.c : width;                 // channels of a work item
  Kokkos::parallel_for("subsample_pad.forward", range(device, ys.size() / each), KOKKOS_LAMBDA(std::int64_t item) {
    const std::int64_t pixel = quotient(item * each, ys.c), first = item * each - pixel * ys.c;
    const std::int64_t row = quotient(pixel, ys.w), q = pixel - row * ys.w, n = quotient(row, ys.h), p = row - n * ys.h;
    const T* from = x + ((n * xs.h + p * stride) * xs.w + q * stride) * xs.c - before;
    T* to = y + pixel * ys.c;
    for (std::int64_t k = first; k < first + each; k += width)
      *reinterpret_cast<Some*>(to + k) = k >= before && k < before + xs.c ? *reinterpret_cast<const Some*>(from + k) : Some{};
  });
}

/// Its transpose; grad_x = or +=.
template <class T, int width>
void subsample_pad_backward(const Device& device, Tensor grad_out, Tensor grad_in, std::int64_t stride, std::int64_t before, bool adds) {
  using Some = Pack<T, width>;
  const Shape xs = grad_in.shape, ys = grad_out.shape;
  const T* dy = grad_out.as<T>();
  T* dx = grad_in.as<T>();
  const std::int64_t each = runs_on_host ? xs.c : width;
  Kokkos::parallel_for("subsample_pad.backward", range(device, xs.size() / each), KOKKOS_LAMBDA(std::int64_t item) {
    const std::int64_t pixel = quotient(item * each, xs.c), first = item * each - pixel * xs.c;
    const std::int64_t row = quotient(pixel, xs.w), w = pixel - row * xs.w, n = quotient(row, xs.h), h = row - n * xs.h;
    const bool was_taken = h % stride == 0 && w % stride == 0;
    T* to = dx + pixel * xs.c;
    if (was_taken) {
      const T* from = dy + ((n * ys.h + h / stride) * ys.w + w / stride) * ys.c + before;
      for (std::int64_t k = first; k < first + each; k += width) {
        Some here = *reinterpret_cast<const Some*>(from + k), &there = *reinterpret_cast<Some*>(to + k);
        for (int i = 0; adds && i < width; ++i) here.of[i] = T(static_cast<float>(there.of[i]) + static_cast<float>(here.of[i]));
        there = here;
      }
    } else if (!adds) {
      for (std::int64_t k = first; k < first + each; k += width) *reinterpret_cast<Some*>(to + k) = Some{};
    }
  });
}

namespace {

/// to = or += from; nothing to do when both are one array and mode is write.
void pass_on(const Backward& b, const GradIn& to) {
  if (to.mode == GradMode::write && to.tensor.data != b.grad_out.data) b.device.copy(to.tensor.data, b.grad_out.data, b.grad_out.bytes());
  if (to.mode == GradMode::add) dispatch(b.grad_out.dtype, [&]<class T>(T) { add_forward<T>(b.device, to.tensor, b.grad_out, to.tensor); });
}

/// relu: y = max(x, 0).  x, y: [n, h, w, c] of f32 | f16 | bf16.  Keeps y, so y may lie over x.
class Relu final : public Layer {
 public:
  std::string kind() const override { return "relu"; }
  Shape output(Shapes in) const override { return in[0]; }
  Needs needs(DType, Shapes) const override { return {.keeps_output = true, .output_over_input = true, .grad_over_grad = true}; }
  void forward(const Forward& f) override {
    const RowCut cut = cut_elements(f.out.shape);
    dispatch(f.out.dtype, [&]<class T>(T) { for_each_block("relu.forward", f.device, cut, ReluForward<T>{f.in[0].as<T>(), f.out.as<T>(), cut.c}); });
  }
  void backward_input(const Backward& b) override {
    const GradIn& to = b.grad_in[0];
    if (to.mode == GradMode::skip) return;
    const RowCut cut = cut_elements(b.out.shape);
    dispatch(b.out.dtype, [&]<class T>(T) {
      for_each_block("relu.backward", b.device, cut, ReluBackward<T>{b.out.as<T>(), b.grad_out.as<T>(), to.tensor.as<T>(), to.mode == GradMode::add, cut.c});
    });
  }
};

/// add: y = a + b.  Keeps nothing.
class Add final : public Layer {
 public:
  std::string kind() const override { return "add"; }
  Shape output(Shapes in) const override {
    require(in[0] == in[1], "add: ", text(in[0]), " and ", text(in[1]), " differ");
    return in[0];
  }
  Needs needs(DType, Shapes) const override { return {.output_over_input = true, .grad_over_grad = true}; }
  void forward(const Forward& f) override {
    dispatch(f.out.dtype, [&]<class T>(T) { add_forward<T>(f.device, f.in[0], f.in[1], f.out); });
  }
  void backward_input(const Backward& b) override {
    for (const GradIn& to : b.grad_in) pass_on(b, to);
  }
};

/// dropout: keeps nothing; backward draws the same numbers again.
class Dropout final : public Layer {
 public:
  Dropout(double p, int index) : p_(static_cast<float>(p)), index_(static_cast<std::uint32_t>(index)) {
    require(p >= 0 && p < 1, "dropout: p = ", p, " must be at least 0 and below 1");
  }
  std::string kind() const override { return "dropout"; }
  Shape output(Shapes in) const override { return in[0]; }
  Needs needs(DType, Shapes) const override { return {.output_over_input = true, .grad_over_grad = true}; }
  void forward(const Forward& f) override {
    if (f.mode == Mode::evaluation) {
      if (f.out.data != f.in[0].data) f.device.copy(f.out.data, f.in[0].data, f.out.bytes());
      return;
    }
    dispatch(f.out.dtype, [&]<class T>(T) { dropout_apply<T>(f.device, f.in[0], f.out, numbers(f.step, f.out), false); });
  }
  void backward_input(const Backward& b) override {
    const GradIn& to = b.grad_in[0];
    if (to.mode == GradMode::skip) return;
    dispatch(b.grad_out.dtype, [&]<class T>(T) {
      dropout_apply<T>(b.device, b.grad_out, to.tensor, numbers(b.step, b.grad_out), to.mode == GradMode::add);
    });
  }

 private:
  DropoutNumbers numbers(const StepState* step, const Tensor& t) const { return {step, t.shape.image_size(), p_, index_}; }
  float p_;
  std::uint32_t index_;
};

/// Option A shortcut.  Keeps nothing.
class SubsamplePad final : public Layer {
 public:
  SubsamplePad(std::int64_t stride, std::int64_t channels) : stride_(stride), channels_(channels) {}
  std::string kind() const override { return "subsample_pad"; }
  Shape output(Shapes in) const override {
    require(channels_ >= in[0].c && stride_ >= 1, "subsample_pad: cannot take ", in[0].c, " channels to ", channels_, " by stride ", stride_);
    return {in[0].n, (in[0].h + stride_ - 1) / stride_, (in[0].w + stride_ - 1) / stride_, channels_};
  }
  Needs needs(DType, Shapes) const override { return {}; }
  void forward(const Forward& f) override {
    dispatch(f.out.dtype, [&]<class T>(T) {
      constexpr int wide = lane_width<T>;
      const bool is_wide = !runs_on_host && has_whole(f.in[0].shape, wide);
      (is_wide ? subsample_pad_forward<T, wide> : subsample_pad_forward<T, 1>)(f.device, f.in[0], f.out, stride_, before(f.in[0].shape));
    });
  }
  void backward_input(const Backward& b) override {
    const GradIn& to = b.grad_in[0];
    if (to.mode == GradMode::skip) return;
    dispatch(b.grad_out.dtype, [&]<class T>(T) {
      constexpr int wide = lane_width<T>;
      const bool is_wide = !runs_on_host && has_whole(to.tensor.shape, wide);
      (is_wide ? subsample_pad_backward<T, wide> : subsample_pad_backward<T, 1>)(b.device, b.grad_out, to.tensor, stride_, before(to.tensor.shape), to.mode == GradMode::add);
    });
  }

 private:
  std::int64_t before(const Shape& in) const { return (channels_ - in.c) / 2; }
  /// Whether input, output and what lies before it are whole packets of so many channels.
  bool has_whole(const Shape& in, std::int64_t width) const { return in.c % width == 0 && channels_ % width == 0 && before(in) % width == 0; }
  std::int64_t stride_, channels_;
};

}  // namespace

Value relu(Value x) {
  const Value in[] = {x};
  return x.graph().append<Relu>(in, "");
}
Value add(Value a, Value b) {
  const Value in[] = {a, b};
  return a.graph().append<Add>(in, "");
}
Value dropout(Value x, double p, int index) {
  const Value in[] = {x};
  return x.graph().append<Dropout>(in, "", p, index);
}
Value subsample_pad(Value x, std::int64_t stride, std::int64_t channels) {
  const Value in[] = {x};
  return x.graph().append<SubsamplePad>(in, "", stride, channels);
}

}  // namespace lockstep
