// pool: max_pool and average_pool.  Backward gathers: each input pixel asks the windows that hold it, so no two work items write one place.
#include "layers/pool.hpp"

#include "layers/lanes.hpp"
#include "layers/layers.hpp"

namespace lockstep {

/// Geometry of one pooling, x [n, h, w, c] -> y [n, p, q, c].
struct Windows {
  int h, w, p, q;
  std::int64_t c;
  int kernel, stride, pad;               // of max_pool
};
inline Windows windows_of(const Shape& x, const Shape& y, const PoolWindow& window = {}) {
  const auto i = [](std::int64_t v) { return static_cast<int>(v); };
  return {i(x.h), i(x.w), i(y.h), i(y.w), x.c, i(window.kernel), i(window.stride), i(window.pad)};
}
/// A work item takes a few pixels: all blocks of them come before the next few, so that reads stay near one another.  A GPU wants many items.
inline constexpr std::int64_t few_pixels = runs_on_host ? 8 : 1;
inline RowCut cut_pixels(const Shape& image) { return cut_rows(image, few_pixels); }

/// Pixel `index` of [n, height, width], and the one after it.
struct Pixel {
  std::int64_t n;
  int y, x, height, width;
  LOCKSTEP_FUNCTION Pixel(std::int64_t index, int height_, int width_) : height(height_), width(width_) {
    const std::int64_t row = quotient(index, width);
    n = quotient(row, height), y = static_cast<int>(row - n * height), x = static_cast<int>(index - row * width);
  }
  LOCKSTEP_FUNCTION void advance() {
    if (++x < width) return;
    x = 0;
    if (++y == height) y = 0, ++n;
  }
};

/// [first, end)
struct Extent {
  int first, end;
};
/// Places of window `out` that lie in an image of `extent` pixels; place 0 is at pixel out * stride - pad.
LOCKSTEP_FUNCTION Extent places_inside(const Windows& g, int out, int extent) {
  const int begin = out * g.stride - g.pad;
  return {begin < 0 ? -begin : 0, begin + g.kernel > extent ? extent - begin : g.kernel};
}
/// Windows, of `count`, that hold a pixel.
LOCKSTEP_FUNCTION Extent windows_around(const Windows& g, int pixel, int count) {
  const int at = pixel + g.pad, end = at / g.stride + 1;
  return {at < g.kernel ? 0 : (at - g.kernel) / g.stride + 1, end < count ? end : count};
}
/// Bin i of `count` over `extent` pixels is [floor(i extent / count), ceil((i + 1) extent / count)).
LOCKSTEP_FUNCTION Extent pixels_of_bin(int i, int extent, int count) { return {i * extent / count, ((i + 1) * extent + count - 1) / count}; }
/// Bins that hold a pixel: those with  i * extent < (pixel + 1) * count  and  (i + 1) * extent > pixel * count.
LOCKSTEP_FUNCTION Extent bins_around(int pixel, int extent, int count) { return {pixel * count / extent, ((pixel + 1) * count + extent - 1) / extent}; }
LOCKSTEP_FUNCTION int length(const Extent& e) { return e.end - e.first; }

/// The largest of the values met, and its place, a small integer.  As PyTorch: the first of equals; a NaN wins.
template <int width>
struct Largest {
  Lanes<width> value, place;
  LOCKSTEP_FUNCTION explicit Largest(int first_place) : value(zeros<width>()), place(value) {
    for (int p = 0; p < value.parts; ++p) value.v[p] -= Kokkos::Experimental::infinity_v<float>, place.v[p] += static_cast<float>(first_place);
  }
  LOCKSTEP_FUNCTION void meet(const Lanes<width>& x, int x_place) {
    const Lanes<width> zero = zeros<width>();
    for (int p = 0; p < value.parts; ++p) {
      const auto wins = (x.v[p] > value.v[p]) | (x.v[p] != x.v[p]);
      value.v[p] = wins ? x.v[p] : value.v[p];
      place.v[p] = wins ? zero.v[p] + static_cast<float>(x_place) : place.v[p];
    }
  }
};

/// y = largest of each window; argmax u8 (null: not wanted) = its place r * kernel + s.
template <class T>
struct MaxPoolForward {
  using Element = T;
  const T* x;
  T* y;
  std::uint8_t* argmax;
  Windows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    Pixel o(begin, g.p, g.q);
    for (std::int64_t pixel = begin; pixel < end; ++pixel, o.advance()) {
      const Extent rows = places_inside(g, o.y, g.h), columns = places_inside(g, o.x, g.w);
      Largest<width> best(rows.first * g.kernel + columns.first);
      for (int r = rows.first; r < rows.end; ++r)
        for (int s = columns.first; s < columns.end; ++s) {
          const std::int64_t h = o.y * g.stride - g.pad + r, w = o.x * g.stride - g.pad + s;
          const T* in = x + ((o.n * g.h + h) * g.w + w) * g.c + channel;
          prefetch(in + few_pixels * g.stride * g.c);
          best.meet(load<width>(in), r * g.kernel + s);
        }
      const std::int64_t out = pixel * g.c + channel;
      store(y + out, best.value);
      if (argmax) store(argmax + out, best.place);
    }
  }
};

/// grad_x = or += the sum of grad_y over the windows whose largest this pixel was.
template <class T>
struct MaxPoolBackward {
  using Element = T;
  const T* grad_y;
  const std::uint8_t* argmax;
  T* grad_x;
  bool adds;
  Windows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    Pixel i(begin, g.h, g.w);
    Extent rows = windows_around(g, i.y, g.p);
    for (std::int64_t pixel = begin; pixel < end; ++pixel, i.advance()) {
      if (i.x == 0) rows = windows_around(g, i.y, g.p);
      const Extent columns = windows_around(g, i.x, g.q);
      T* to = grad_x + pixel * g.c + channel;
      prefetch_for_writing(to + few_pixels * g.c);
      Lanes<width> sum = adds ? load<width>(to) : zeros<width>();
      for (int p = rows.first; p < rows.end; ++p)
        for (int q = columns.first; q < columns.end; ++q) {
          const std::int64_t from = ((i.n * g.p + p) * g.q + q) * g.c + channel;
          const int place = (i.y + g.pad - p * g.stride) * g.kernel + i.x + g.pad - q * g.stride;
          sum = sum + where_equal(load_bytes<width>(argmax + from), static_cast<std::uint8_t>(place), load<width>(grad_y + from));
        }
      store(to, sum);
    }
  }
};

/// y = mean of each bin.
template <class T>
struct AveragePoolForward {
  using Element = T;
  const T* x;
  T* y;
  Windows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    Pixel o(begin, g.p, g.q);
    for (std::int64_t pixel = begin; pixel < end; ++pixel, o.advance()) {
      const Extent rows = pixels_of_bin(o.y, g.h, g.p), columns = pixels_of_bin(o.x, g.w, g.q);
      Lanes<width> sum = zeros<width>();
      for (std::int64_t h = rows.first; h < rows.end; ++h)
        for (std::int64_t w = columns.first; w < columns.end; ++w) sum = sum + load<width>(x + ((o.n * g.h + h) * g.w + w) * g.c + channel);
      store(y + pixel * g.c + channel, sum / static_cast<float>(length(rows) * length(columns)));
    }
  }
};

/// grad_x = or += the sum over the bins that hold the pixel of grad_y / area.
template <class T>
struct AveragePoolBackward {
  using Element = T;
  const T* grad_y;
  T* grad_x;
  bool adds;
  Windows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    Pixel i(begin, g.h, g.w);
    for (std::int64_t pixel = begin; pixel < end; ++pixel, i.advance()) {
      const Extent rows = bins_around(i.y, g.h, g.p), columns = bins_around(i.x, g.w, g.q);
      T* to = grad_x + pixel * g.c + channel;
      Lanes<width> sum = adds ? load<width>(to) : zeros<width>();
      for (int p = rows.first; p < rows.end; ++p)
        for (int q = columns.first; q < columns.end; ++q) {
          const int area = length(pixels_of_bin(p, g.h, g.p)) * length(pixels_of_bin(q, g.w, g.q));
          sum = sum + load<width>(grad_y + ((i.n * g.p + p) * g.q + q) * g.c + channel) / static_cast<float>(area);
        }
      store(to, sum);
    }
  }
};

MaxPool::MaxPool(const PoolWindow& window) : window_(window) {
  const auto& [kernel, stride, pad] = window;
  require(kernel >= 1 && kernel <= 16 && stride >= 1 && pad >= 0 && 2 * pad <= kernel, "max_pool: kernel ", kernel, ", stride ", stride, ", pad ", pad,
          ": the kernel must be 1 to 16, the stride at least 1, the pad at most half the kernel");
}

void MaxPool::forward(const Forward& f) {
  std::uint8_t* argmax = f.mode == Mode::training ? f.saved.as<std::uint8_t>() : nullptr;
  dispatch(f.out.dtype, [&]<class T>(T) {
    for_each_block("max_pool.forward", f.device, cut_pixels(f.out.shape),
                   MaxPoolForward<T>{f.in[0].as<T>(), f.out.as<T>(), argmax, windows_of(f.in[0].shape, f.out.shape, window_)});
  });
}

void MaxPool::backward_input(const Backward& b) {
  const GradIn& to = b.grad_in[0];
  if (to.mode == GradMode::skip) return;
  dispatch(b.grad_out.dtype, [&]<class T>(T) {
    for_each_block("max_pool.backward", b.device, cut_pixels(to.tensor.shape),
                   MaxPoolBackward<T>{b.grad_out.as<T>(), b.saved.as<std::uint8_t>(), to.tensor.as<T>(), to.mode == GradMode::add,
                                      windows_of(to.tensor.shape, b.grad_out.shape, window_)});
  });
}

namespace {

/// average_pool: keeps nothing.
class AveragePool final : public Layer {
 public:
  explicit AveragePool(std::int64_t out) : out_(out) { require(out >= 1, "average_pool: out = ", out, " must be at least 1"); }
  std::string kind() const override { return "average_pool"; }
  Shape output(Shapes in) const override { return {in[0].n, out_, out_, in[0].c}; }
  Needs needs(DType, Shapes) const override { return {}; }
  void forward(const Forward& f) override {
    dispatch(f.out.dtype, [&]<class T>(T) {
      for_each_block("average_pool.forward", f.device, cut_pixels(f.out.shape),
                     AveragePoolForward<T>{f.in[0].as<T>(), f.out.as<T>(), windows_of(f.in[0].shape, f.out.shape)});
    });
  }
  void backward_input(const Backward& b) override {
    const GradIn& to = b.grad_in[0];
    const Shape& x = to.tensor.shape;
    if (to.mode == GradMode::skip) return;
    dispatch(b.grad_out.dtype, [&]<class T>(T) {
      for_each_block("average_pool.backward", b.device, cut_pixels(x),
                     AveragePoolBackward<T>{b.grad_out.as<T>(), to.tensor.as<T>(), to.mode == GradMode::add, windows_of(x, b.grad_out.shape)});
    });
  }

 private:
  std::int64_t out_;
};

}  // namespace

Value max_pool(Value x, std::int64_t kernel, std::int64_t stride, std::int64_t pad) {
  const Value in[] = {x};
  return x.graph().append<MaxPool>(in, "", PoolWindow{kernel, stride, pad});
}
Value average_pool(Value x, std::int64_t out) {
  const Value in[] = {x};
  return x.graph().append<AveragePool>(in, "", out);
}

}  // namespace lockstep
