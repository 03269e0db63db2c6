// kokkos_conv: the portable convolution.  Any kernel, stride, pad and batch, every dtype, on a CPU and on a GPU; the one that others fall back on.
// In: NHWC tensors, weights [k, r, s, c].  Out: sums taken in f32, in an order that only the shape decides.
// Method: direct sums.  In a row of the kernel, the pixels' and the weights' channels (s, c) lie side by side: one contiguous piece.
// A work item computes a few neighbouring outputs, `lanes` of them (or of their partial sums) side by side on a CPU, where the compiler keeps
// them in vector registers, and one on a GPU, where neighbouring threads take neighbouring numbers.
#include "backends/chunk_sums.hpp"
#include "backends/conv.hpp"
#include "tensor/views.hpp"

namespace lockstep {

namespace {

constexpr int lanes = runs_on_host ? 8 : 1;
constexpr int channels_each = 4;   // output channels of a work item: each read of x serves so many sums

constexpr std::int64_t pieces(std::int64_t count, std::int64_t each) { return (count + each - 1) / each; }

LOCKSTEP_FUNCTION std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
LOCKSTEP_FUNCTION std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

}  // namespace

/// What a kernel must know of a ConvProblem; small, for it travels with every launch.
struct ConvGeometry {
  std::int64_t h, w, c, k, r, s, p, q, stride, pad;
  explicit ConvGeometry(const ConvProblem& o) : h(o.h), w(o.w), c(o.c), k(o.k), r(o.r), s(o.s), p(o.p()), q(o.q()), stride(o.stride), pad(o.pad) {}
  LOCKSTEP_FUNCTION std::int64_t terms() const { return r * s * c; }
};

/// y = x * weight + bias.  One work item: one pixel, four output channels.
template <class T>
void conv_forward(const Device& device, ConvGeometry g, Tensor x, Tensor weight, Tensor bias, Tensor y) {
  const T* const in = x.as<T>();
  const T* const kernel = weight.as<T>();
  const float* const shift = bias.as<float>();
  T* const out = y.as<T>();
  const std::int64_t pixels = y.shape.n * g.p * g.q;
  Kokkos::parallel_for("conv.forward", range(device, pixels * pieces(g.k, channels_each)), KOKKOS_LAMBDA(std::int64_t item) {
    const std::int64_t first = item / pixels * channels_each, pixel = item % pixels, image = pixel / (g.p * g.q);
    const std::int64_t row = pixel / g.q % g.p * g.stride - g.pad, column = pixel % g.q * g.stride - g.pad;
    const std::int64_t s_begin = larger(0, -column), s_end = smaller(g.s, g.w - column), length = (s_end - s_begin) * g.c;
    std::int64_t offset[channels_each];                      // a channel beyond the last computes the last once more, and is not stored
    for (int i = 0; i < channels_each; ++i) offset[i] = smaller(first + i, g.k - 1) * g.terms();
    float sum[channels_each][lanes] = {};
    for (std::int64_t r = larger(0, -row); r < smaller(g.r, g.h - row); ++r) {
      const T* const from = in + ((image * g.h + row + r) * g.w + column + s_begin) * g.c;
      const T* const by = kernel + (r * g.s + s_begin) * g.c;
      std::int64_t j = 0;
      for (; j + lanes <= length; j += lanes)
        for (int i = 0; i < channels_each; ++i)
          for (int l = 0; l < lanes; ++l) sum[i][l] += static_cast<float>(from[j + l]) * static_cast<float>(by[offset[i] + j + l]);
      for (; j < length; ++j)
        for (int i = 0; i < channels_each; ++i) sum[i][0] += static_cast<float>(from[j]) * static_cast<float>(by[offset[i] + j]);
    }
    for (int i = 0; i < channels_each && first + i < g.k; ++i) {
      float total = shift ? shift[first + i] : 0.f;
      for (int l = 0; l < lanes; ++l) total += sum[i][l];
      out[pixel * g.k + first + i] = T(total);
    }
  });
}

/// grad_x = grad_y * weight turned around, or is added to what is there.  One work item: one pixel, `lanes` input channels.
template <class T>
void conv_grad_input(const Device& device, ConvGeometry g, Tensor grad_y, Tensor weight, Tensor grad_x, bool adds) {
  const T* const from = grad_y.as<T>();
  const T* const kernel = weight.as<T>();
  T* const out = grad_x.as<T>();
  const std::int64_t blocks = pieces(g.c, lanes);
  Kokkos::parallel_for("conv.grad_input", range(device, grad_x.shape.n * g.h * g.w * blocks), KOKKOS_LAMBDA(std::int64_t item) {
    const std::int64_t pixel = item / blocks, first = item % blocks * lanes, image = pixel / (g.h * g.w);
    const std::int64_t row = pixel / g.w % g.h + g.pad, column = pixel % g.w + g.pad;
    const int width = static_cast<int>(smaller(lanes, g.c - first));
    float sum[lanes] = {};
    for (std::int64_t r = 0; r < g.r; ++r) {
      const std::int64_t p = (row - r) / g.stride;
      if (row < r || p * g.stride != row - r || p >= g.p) continue;
      for (std::int64_t s = 0; s < g.s; ++s) {
        const std::int64_t q = (column - s) / g.stride;
        if (column < s || q * g.stride != column - s || q >= g.q) continue;
        const T* const gradient = from + ((image * g.p + p) * g.q + q) * g.k;
        const T* by = kernel + (r * g.s + s) * g.c + first;
        if (width == lanes) {
          for (std::int64_t k = 0; k < g.k; ++k, by += g.terms())
            for (int l = 0; l < lanes; ++l) sum[l] += static_cast<float>(gradient[k]) * static_cast<float>(by[l]);
        } else {
          for (std::int64_t k = 0; k < g.k; ++k, by += g.terms())
            for (int l = 0; l < width; ++l) sum[l] += static_cast<float>(gradient[k]) * static_cast<float>(by[l]);
        }
      }
    }
    T* const to = out + pixel * g.c + first;
    for (int l = 0; l < width; ++l) to[l] = T(adds ? static_cast<float>(to[l]) + sum[l] : sum[l]);
  });
}

/// Sums of grad_y x over a chunk of the output's rows (n, p), for each weight: to[chunk][k, r, s, c], written or added to.
/// One work item: four output channels, `lanes` neighbours of a kernel row (s, c).
template <class T>
void conv_grad_weight(const Device& device, ConvGeometry g, Tensor x, Tensor grad_y, float* to, std::int64_t chunks, bool adds) {
  const T* const in = x.as<T>();
  const T* const from = grad_y.as<T>();
  const std::int64_t rows = x.shape.n * g.p, rows_each = pieces(rows, chunks), row_length = g.s * g.c, blocks = pieces(row_length, lanes);
  const std::int64_t items_each = pieces(g.k, channels_each) * g.r * blocks;
  Kokkos::parallel_for("conv.grad_weight", range(device, chunks * items_each), KOKKOS_LAMBDA(std::int64_t item) {
    const std::int64_t chunk = item / items_each, j = item % blocks * lanes, r = item / blocks % g.r;
    const std::int64_t first = item % items_each / (blocks * g.r) * channels_each;
    const int width = static_cast<int>(smaller(lanes, row_length - j)), channels = static_cast<int>(smaller(channels_each, g.k - first));
    float sum[channels_each][lanes] = {};
    for (std::int64_t at = chunk * rows_each; at < smaller(rows, (chunk + 1) * rows_each); ++at) {
      const std::int64_t row = at % g.p * g.stride - g.pad + r;
      if (row < 0 || row >= g.h) continue;
      const T* const pixels = in + (at / g.p * g.h + row) * g.w * g.c;
      for (std::int64_t q = 0; q < g.q; ++q) {
        const T* const gradient = from + (at * g.q + q) * g.k + first;
        const std::int64_t begin = (q * g.stride - g.pad) * g.c + j;
        float by[channels_each];
        for (int i = 0; i < channels_each; ++i) by[i] = i < channels ? static_cast<float>(gradient[i]) : 0.f;
        if (width == lanes && begin >= 0 && begin + lanes <= g.w * g.c) {
          for (int i = 0; i < channels_each; ++i)
            for (int l = 0; l < lanes; ++l) sum[i][l] += by[i] * static_cast<float>(pixels[begin + l]);
        } else {
          for (int l = 0; l < width; ++l)
            if (begin + l >= 0 && begin + l < g.w * g.c)
              for (int i = 0; i < channels_each; ++i) sum[i][l] += by[i] * static_cast<float>(pixels[begin + l]);
        }
      }
    }
    for (int i = 0; i < channels; ++i)
      for (int l = 0; l < width; ++l) {
        float& stored = to[((chunk * g.k + first + i) * g.r + r) * row_length + j + l];
        stored = adds ? stored + sum[i][l] : sum[i][l];
      }
  });
}

namespace {

class KokkosConv final : public ConvOp {
 public:
  explicit KokkosConv(const ConvProblem& problem) : problem_(problem), weights_(problem.weight().size()) {
    // Enough items for a GPU where there are few weights, and sums short enough for f32; none of it depends on the machine.
    const std::int64_t rows = problem.n * problem.p();
    weight_chunks_ = std::min(std::max<std::int64_t>(rows, 1), pieces(std::int64_t{1} << 19, weights_));
  }
  const ConvProblem& problem() const override { return problem_; }
  std::size_t workspace_bytes() const override { return 0; }
  std::size_t weight_workspace_bytes() const override {
    const std::int64_t partial = weight_chunks_ > 1 || problem_.dtype != DType::f32 ? weight_chunks_ * weights_ : 0;
    return std::max(static_cast<std::size_t>(partial) * sizeof(float), bias_workspace_bytes(problem_));
  }

  void forward(Device& device, const ConvArguments& a) override {
    if (checked_batch(*this, a) == 0) return;
    dispatch(problem_.dtype, [&]<class T>(T) { conv_forward<T>(device, ConvGeometry(problem_), a.x, a.weight, a.bias, a.y); });
  }
  void grad_input(Device& device, const ConvArguments& a) override {
    if (checked_batch(*this, a) == 0) return;
    dispatch(problem_.dtype, [&]<class T>(T) {
      conv_grad_input<T>(device, ConvGeometry(problem_), a.grad_y, a.weight, a.grad_x, a.mode == GradMode::add);
    });
  }
  void grad_weight(Device& device, const ConvArguments& a) override {
    checked_batch(*this, a);
    const bool adds = a.mode == GradMode::add;
    float* const partial = a.workspace.as<float>();
    dispatch(problem_.dtype, [&]<class T>(T) {
      if (a.grad_weight && weight_chunks_ == 1 && a.grad_weight.dtype == DType::f32) {
        conv_grad_weight<T>(device, ConvGeometry(problem_), a.x, a.grad_y, a.grad_weight.as<float>(), 1, adds);
      } else if (a.grad_weight) {
        conv_grad_weight<T>(device, ConvGeometry(problem_), a.x, a.grad_y, partial, weight_chunks_, false);
        dispatch(a.grad_weight.dtype, [&]<class To>(To) { add_chunks(device, partial, weight_chunks_, a.grad_weight.as<To>(), weights_, adds); });
      }
      if (a.grad_bias) conv_grad_bias<T>(device, problem_, a.grad_y, a.grad_bias, partial, adds);
    });
  }

 private:
  ConvProblem problem_;
  std::int64_t weights_, weight_chunks_;
};

}  // namespace

ConvBackend kokkos_conv_backend() {
  return {.name = "kokkos",
          .supports = [](const ConvProblem& problem) { return problem.input_channels == 0 && (problem.dtype == DType::f32 || problem.dtype == DType::f16 || problem.dtype == DType::bf16); },
          .make = [](Device&, const ConvProblem& problem, const ConvSetting&) -> std::unique_ptr<ConvOp> { return std::make_unique<KokkosConv>(problem); }};
}

}  // namespace lockstep
