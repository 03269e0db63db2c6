// pool: max_pool and average_pool.  Backward gathers: each input pixel asks the windows that hold it, so no two work items write one place.
#include "layers/lanes.hpp"
#include "layers/layers.hpp"

namespace lockstep {

/// Geometry of one pooling, x [n, h, w, c] -> y [n, p, q, c].
struct Windows {
  std::int64_t h, w, p, q, c;
  std::int64_t kernel, stride, pad;      // of max_pool
};

/// Pixel `index` of [n, height, width].
struct Pixel {
  std::int64_t n, y, x;
};
LOCKSTEP_FUNCTION Pixel pixel_of(std::int64_t index, std::int64_t height, std::int64_t width) {
  const std::int64_t row = index / width;
  return {row / height, row % height, index % width};
}

/// The largest of the values met, and its place, a small integer.  As PyTorch: the first of equals; a NaN wins.
template <int width>
struct Largest {
  Lanes<width> value, place;
  LOCKSTEP_FUNCTION explicit Largest(float first_place) : value(zeros<width>()), place(value) {
    for (int p = 0; p < value.parts; ++p) value.v[p] -= Kokkos::Experimental::infinity_v<float>, place.v[p] += first_place;
  }
  LOCKSTEP_FUNCTION void meet(const Lanes<width>& x, float x_place) {
    const Lanes<width> places = zeros<width>();
    for (int p = 0; p < value.parts; ++p) {
      const auto wins = (x.v[p] > value.v[p]) | (x.v[p] != x.v[p]);
      value.v[p] = wins ? x.v[p] : value.v[p];
      place.v[p] = wins ? places.v[p] + x_place : place.v[p];
    }
  }
};

/// y = largest of each window; argmax u8 (null: not wanted) = its place r * kernel + s.
template <class T>
struct MaxPoolForward {
  const T* x;
  T* y;
  std::uint8_t* argmax;
  Windows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    for (std::int64_t pixel = begin; pixel < end; ++pixel) {
      const Pixel o = pixel_of(pixel, g.p, g.q);
      const std::int64_t top = o.y * g.stride - g.pad, left = o.x * g.stride - g.pad;
      const std::int64_t r_first = top < 0 ? -top : 0, r_end = top + g.kernel > g.h ? g.h - top : g.kernel;
      const std::int64_t s_first = left < 0 ? -left : 0, s_end = left + g.kernel > g.w ? g.w - left : g.kernel;
      Largest<width> best(static_cast<float>(r_first * g.kernel + s_first));
      for (std::int64_t r = r_first; r < r_end; ++r)
        for (std::int64_t s = s_first; s < s_end; ++s)
          best.meet(load<width>(x + ((o.n * g.h + top + r) * g.w + left + s) * g.c + channel), static_cast<float>(r * g.kernel + s));
      const std::int64_t out = pixel * g.c + channel;
      store(y + out, best.value);
      if (argmax) store(argmax + out, best.place);
    }
  }
};

/// g where a is b, else 0.
template <int width>
LOCKSTEP_FUNCTION Lanes<width> where_equal(const Lanes<width>& a, float b, const Lanes<width>& g) {
  Lanes<width> r = zeros<width>();
  for (int p = 0; p < r.parts; ++p) r.v[p] = a.v[p] == r.v[p] + b ? g.v[p] : r.v[p];
  return r;
}

/// grad_x = or += the sum of grad_y over the windows whose largest this pixel was.
template <class T>
struct MaxPoolBackward {
  const T* grad_y;
  const std::uint8_t* argmax;
  T* grad_x;
  bool adds;
  Windows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    for (std::int64_t pixel = begin; pixel < end; ++pixel) {
      const Pixel i = pixel_of(pixel, g.h, g.w);
      // Windows with  p * stride - pad <= y < p * stride - pad + kernel.
      const std::int64_t y = i.y + g.pad, left = i.x + g.pad;
      const std::int64_t p_first = y < g.kernel ? 0 : (y - g.kernel) / g.stride + 1, p_end = y / g.stride + 1 < g.p ? y / g.stride + 1 : g.p;
      const std::int64_t q_first = left < g.kernel ? 0 : (left - g.kernel) / g.stride + 1, q_end = left / g.stride + 1 < g.q ? left / g.stride + 1 : g.q;
      T* to = grad_x + pixel * g.c + channel;
      Lanes<width> sum = adds ? load<width>(to) : zeros<width>();
      for (std::int64_t p = p_first; p < p_end; ++p)
        for (std::int64_t q = q_first; q < q_end; ++q) {
          const std::int64_t from = ((i.n * g.p + p) * g.q + q) * g.c + channel;
          const auto place = static_cast<float>((y - p * g.stride) * g.kernel + left - q * g.stride);
          sum = sum + where_equal(load<width>(argmax + from), place, load<width>(grad_y + from));
        }
      store(to, sum);
    }
  }
};

/// Bin i of `out` over `extent` pixels is [floor(i extent / out), ceil((i + 1) extent / out)).
LOCKSTEP_FUNCTION std::int64_t bin_begin(std::int64_t i, std::int64_t extent, std::int64_t out) { return i * extent / out; }
LOCKSTEP_FUNCTION std::int64_t bin_end(std::int64_t i, std::int64_t extent, std::int64_t out) { return ((i + 1) * extent + out - 1) / out; }

template <class T>
struct AveragePoolForward {
  const T* x;
  T* y;
  Windows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    for (std::int64_t pixel = begin; pixel < end; ++pixel) {
      const Pixel o = pixel_of(pixel, g.p, g.q);
      const std::int64_t h_begin = bin_begin(o.y, g.h, g.p), h_end = bin_end(o.y, g.h, g.p);
      const std::int64_t w_begin = bin_begin(o.x, g.w, g.q), w_end = bin_end(o.x, g.w, g.q);
      Lanes<width> sum = zeros<width>();
      for (std::int64_t h = h_begin; h < h_end; ++h)
        for (std::int64_t w = w_begin; w < w_end; ++w) sum = sum + load<width>(x + ((o.n * g.h + h) * g.w + w) * g.c + channel);
      const auto area = static_cast<float>((h_end - h_begin) * (w_end - w_begin));
      store(y + pixel * g.c + channel, sum / area);
    }
  }
};

/// grad_x = or += the sum over the bins that hold the pixel of grad_y / area.
template <class T>
struct AveragePoolBackward {
  const T* grad_y;
  T* grad_x;
  bool adds;
  Windows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    for (std::int64_t pixel = begin; pixel < end; ++pixel) {
      const Pixel i = pixel_of(pixel, g.h, g.w);
      // Bin p holds y where p * h < (y + 1) * out and (p + 1) * h > y * out.
      const std::int64_t p_first = i.y * g.p / g.h, p_end = ((i.y + 1) * g.p + g.h - 1) / g.h;
      const std::int64_t q_first = i.x * g.q / g.w, q_end = ((i.x + 1) * g.q + g.w - 1) / g.w;
      T* to = grad_x + pixel * g.c + channel;
      Lanes<width> sum = adds ? load<width>(to) : zeros<width>();
      for (std::int64_t p = p_first; p < p_end; ++p)
        for (std::int64_t q = q_first; q < q_end; ++q) {
          const auto area = static_cast<float>((bin_end(p, g.h, g.p) - bin_begin(p, g.h, g.p)) * (bin_end(q, g.w, g.q) - bin_begin(q, g.w, g.q)));
          sum = sum + load<width>(grad_y + ((i.n * g.p + p) * g.q + q) * g.c + channel) / area;
        }
      store(to, sum);
    }
  }
};

namespace {

constexpr std::int64_t one_pixel = 1;    // rows a work item

/// max_pool: keeps the place of each window's largest, one byte an output.
class MaxPool final : public Layer {
 public:
  MaxPool(std::int64_t kernel, std::int64_t stride, std::int64_t pad) : kernel_(kernel), stride_(stride), pad_(pad) {
    require(kernel >= 1 && kernel <= 16 && stride >= 1 && pad >= 0 && 2 * pad <= kernel, "max_pool: kernel ", kernel, ", stride ", stride, ", pad ", pad,
            ": the kernel must be 1 to 16, the stride at least 1, the pad at most half the kernel");
  }
  std::string kind() const override { return "max_pool"; }
  Shape output(Shapes in) const override {
    const auto extent = [&](std::int64_t x) { return x + 2 * pad_ < kernel_ ? 0 : (x + 2 * pad_ - kernel_) / stride_ + 1; };
    return {in[0].n, extent(in[0].h), extent(in[0].w), in[0].c};
  }
  Needs needs(DType, Shapes in) const override { return {.saved_bytes = static_cast<std::size_t>(output(in).size())}; }
  void forward(const Forward& f) override {
    std::uint8_t* argmax = f.mode == Mode::training ? f.saved.as<std::uint8_t>() : nullptr;
    dispatch(f.out.dtype, [&]<class T>(T) {
      for_each_block("max_pool.forward", f.device, cut_rows(f.out.shape, one_pixel),
                     MaxPoolForward<T>{f.in[0].as<T>(), f.out.as<T>(), argmax, windows(f.in[0].shape, f.out.shape)});
    });
  }
  void backward_input(const Backward& b) override {
    const GradIn& to = b.grad_in[0];
    if (to.mode == GradMode::skip) return;
    dispatch(b.grad_out.dtype, [&]<class T>(T) {
      for_each_block("max_pool.backward", b.device, cut_rows(to.tensor.shape, one_pixel),
                     MaxPoolBackward<T>{b.grad_out.as<T>(), b.saved.as<std::uint8_t>(), to.tensor.as<T>(), to.mode == GradMode::add,
                                        windows(to.tensor.shape, b.grad_out.shape)});
    });
  }

 private:
  Windows windows(const Shape& x, const Shape& y) const { return {x.h, x.w, y.h, y.w, x.c, kernel_, stride_, pad_}; }
  std::int64_t kernel_, stride_, pad_;
};

/// average_pool: keeps nothing.
class AveragePool final : public Layer {
 public:
  explicit AveragePool(std::int64_t out) : out_(out) { require(out >= 1, "average_pool: out = ", out, " must be at least 1"); }
  std::string kind() const override { return "average_pool"; }
  Shape output(Shapes in) const override { return {in[0].n, out_, out_, in[0].c}; }
  Needs needs(DType, Shapes) const override { return {}; }
  void forward(const Forward& f) override {
    const Shape& x = f.in[0].shape;
    dispatch(f.out.dtype, [&]<class T>(T) {
      for_each_block("average_pool.forward", f.device, cut_rows(f.out.shape, one_pixel),
                     AveragePoolForward<T>{f.in[0].as<T>(), f.out.as<T>(), {x.h, x.w, out_, out_, x.c, 0, 0, 0}});
    });
  }
  void backward_input(const Backward& b) override {
    const GradIn& to = b.grad_in[0];
    const Shape& x = to.tensor.shape;
    if (to.mode == GradMode::skip) return;
    dispatch(b.grad_out.dtype, [&]<class T>(T) {
      for_each_block("average_pool.backward", b.device, cut_rows(x, one_pixel),
                     AveragePoolBackward<T>{b.grad_out.as<T>(), to.tensor.as<T>(), to.mode == GradMode::add, {x.h, x.w, out_, out_, x.c, 0, 0, 0}});
    });
  }

 private:
  std::int64_t out_;
};

}  // namespace

Value max_pool(Value x, std::int64_t kernel, std::int64_t stride, std::int64_t pad) {
  const Value in[] = {x};
  return x.graph().append<MaxPool>(in, "", kernel, stride, pad);
}
Value average_pool(Value x, std::int64_t out) {
  const Value in[] = {x};
  return x.graph().append<AveragePool>(in, "", out);
}

}  // namespace lockstep
