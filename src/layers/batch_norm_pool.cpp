#include "layers/batch_norm_pool.hpp"

namespace lockstep {

/// The stem's windows: 3x3, stride 2, pad 1, of an image [h, w] into [p, q].  A work item takes the 2x2 pixels of x from (2i, 2j) on in backward: the
/// windows that hold them are (i, j) and its neighbours below and to the right, whose places 0 to 8 are known when this is compiled.
struct StemWindows {
  int h, w, p, q;
  std::int64_t c;
  /// x of pixel (row, column) of image n is at image(n, h, w) + (row * w + column) * c.
  LOCKSTEP_FUNCTION std::int64_t image(std::int64_t n, int height, int width) const { return n * height * width * c; }
  LOCKSTEP_FUNCTION std::int64_t pixel(int row, int column, int width) const { return static_cast<std::int64_t>(row * width + column) * c; }
};
StemWindows windows_of(const Shape& x, const Shape& y) {
  const auto i = [](std::int64_t v) { return static_cast<int>(v); };
  return {i(x.h), i(x.w), i(y.h), i(y.w), x.c};
}
/// The row or column of an image of `extent` that is nearest to i.
LOCKSTEP_FUNCTION int inside(int i, int extent) { return i < 0 ? 0 : i < extent ? i : extent - 1; }

/// A window's image, row and column.
struct WindowAt {
  std::int64_t n;
  int i, j;
  LOCKSTEP_FUNCTION WindowAt(std::int64_t index, const StemWindows& g) {
    const std::int64_t row = quotient(index, g.q);
    n = quotient(row, g.p), i = static_cast<int>(row - n * g.p), j = static_cast<int>(index - row * g.q);
  }
};

/// -1, 0, 1: relu's input rises or falls with x.
template <int width>
LOCKSTEP_FUNCTION Lanes<width> sign(const Lanes<width>& a) {
  const Lanes<width> zero = zeros<width>();
  Lanes<width> one, r;
  for (int p = 0; p < r.parts; ++p) one.v[p] = zero.v[p] + 1.f, r.v[p] = (a.v[p] > zero.v[p] ? one.v[p] : zero.v[p]) - (a.v[p] < zero.v[p] ? one.v[p] : zero.v[p]);
  return r;
}

/// The places of a packet's windows.
template <int width>
struct Places {
  static constexpr bool is_packed = !runs_on_host && width > 1;
  using Word = std::conditional_t<width == 8, std::uint32_t, std::uint16_t>;
  std::conditional_t<is_packed, Word, LaneBytes<width>> of;

  /// at: of the packet's first element.
  LOCKSTEP_FUNCTION static Places read(const std::uint8_t* places, std::int64_t at) {
    if constexpr (is_packed) return {reinterpret_cast<const Word*>(places)[at / width]};
    else return {load_bytes<width>(places + at)};
  }
  LOCKSTEP_FUNCTION static void write(std::uint8_t* places, std::int64_t at, const Lanes<width>& numbers) {
    if constexpr (is_packed) {
      std::uint32_t word = 0;
      for (int i = 0; i < width; ++i) word |= static_cast<std::uint32_t>(numbers.v[i]) << 4 * i;
      reinterpret_cast<Word*>(places)[at / width] = static_cast<Word>(word);
    } else {
      store(places + at, numbers);
    }
  }
  /// g where the place is `place`, else 0.
  LOCKSTEP_FUNCTION Lanes<width> where(int place, const Lanes<width>& g) const {
    if constexpr (is_packed) {
      Lanes<width> r;
      for (int i = 0; i < width; ++i) r.v[i] = static_cast<int>(of >> 4 * i & 15) == place ? g.v[i] : 0.f;
      return r;
    } else {
      return where_equal(of, static_cast<std::uint8_t>(place), g);
    }
  }
};

template <class T>
struct BatchNormPoolApply {
  using Element = T;
  const T* x;
  T *y, *largest;
  std::uint8_t* argmax;
  BatchNormVectors vectors;
  StemWindows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    const BlockVectors<width> v(vectors, channel);
    const Lanes<width> direction = sign(v.scale), zero = zeros<width>();
    for (std::int64_t window = begin; window < end; ++window) {
      const WindowAt at(window, g);
      const T* image = x + g.image(at.n, g.h, g.w) + channel;
      // As max_pool of relu's output, to rounding: the first of equals; a NaN wins.  x where the largest is, rather than that, decides.
      Lanes<width> best = zero, best_x = zero, place = zero;
      for (int p = 0; p < best.parts; ++p) best.v[p] -= Kokkos::Experimental::infinity_v<float>;
      Raw<width, T> xs[9];               // all are asked for before the first is used; a place outside reads its neighbour inside, and does not count
      const auto row_of = [&](int place) { return 2 * at.i - 1 + place / 3; };
      const auto column_of = [&](int place) { return 2 * at.j - 1 + place % 3; };
      for (int k = 0; k < 9; ++k) xs[k] = load_raw<width>(image + g.pixel(inside(row_of(k), g.h), inside(column_of(k), g.w), g.w));
      for (int k = 0; k < 9; ++k) {
        if (row_of(k) != inside(row_of(k), g.h) || column_of(k) != inside(column_of(k), g.w)) continue;
        const Lanes<width> in = xs[k].lanes(), key = in * direction;
        for (int p = 0; p < key.parts; ++p) {
          const auto wins = (key.v[p] > best.v[p]) | (key.v[p] != key.v[p]);
          best.v[p] = wins ? key.v[p] : best.v[p];
          best_x.v[p] = wins ? in.v[p] : best_x.v[p];
          place.v[p] = wins ? zero.v[p] + static_cast<float>(k) : place.v[p];
        }
      }
      const std::int64_t out = window * g.c + channel;
      store(y + out, positive_part((best_x - v.mean) * v.scale + v.bias));
      if (argmax) Places<width>::write(argmax, out, place), store(largest + out, best_x);
    }
  }
};

template <class T>
struct BatchNormPoolGradApply {
  using Element = T;
  const T *x, *grad_y;
  const std::uint8_t* argmax;
  T* grad_x;
  bool adds;
  BatchNormVectors vectors;
  const float* means;
  StemWindows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    const GradMap<width> map(vectors, means, g.c, channel);
    for (std::int64_t window = begin; window < end; ++window) {
      const WindowAt at(window, g);
      const bool has_below = at.i + 1 < g.p, has_right = at.j + 1 < g.q;
      const std::int64_t image = g.image(at.n, g.h, g.w) + channel;
      // All is asked for before the first is used.  A window or pixel that does not exist reads one that does, and then does not count.
      std::int64_t windows[4], pixels[4];
      for (int k = 0; k < 4; ++k) {
        windows[k] = (window + (k / 2 != 0 && has_below ? g.q : 0) + (k % 2 != 0 && has_right ? 1 : 0)) * g.c + channel;
        pixels[k] = image + g.pixel(inside(2 * at.i + k / 2, g.h), inside(2 * at.j + k % 2, g.w), g.w);
      }
      Raw<width, T> xs[4], grads[4];
      Places<width> places[4];
      for (int k = 0; k < 4; ++k) {
        xs[k] = load_raw_last<width>(x + pixels[k]);
        grads[k] = load_raw<width>(grad_y + windows[k]), places[k] = Places<width>::read(argmax, windows[k]);
      }
      const auto from = [&](int i, int j, int place) {   // what window (at.i + i, at.j + j) sends to its place
        const bool exists = (i == 0 || has_below) && (j == 0 || has_right);
        return exists ? places[2 * i + j].where(place, grads[2 * i + j].lanes()) : zeros<width>();
      };
      const auto finish = [&](int row, int column, const Lanes<width>& sum) {
        if (2 * at.i + row >= g.h || 2 * at.j + column >= g.w) return;
        T* const to = grad_x + pixels[2 * row + column];
        const Lanes<width> centered = xs[2 * row + column].lanes() - map.v.mean, d = map(centered, where_positive(centered * map.v.scale + map.v.bias, sum));
        store(to, adds ? load<width>(to) + d : d);
      };
      finish(0, 0, from(0, 0, 4));
      finish(0, 1, from(0, 0, 5) + from(0, 1, 3));
      finish(1, 0, from(0, 0, 7) + from(1, 0, 1));
      finish(1, 1, from(0, 0, 8) + from(0, 1, 6) + from(1, 0, 2) + from(1, 1, 0));
    }
  }
};

void batch_norm_pool_apply(const Device& device, Tensor x, Tensor y, const BatchNormVectors& vectors, const PoolSaved& saved) {
  dispatch(x.dtype, [&]<class T>(T) {
    for_each_block("batch_norm_pool.apply", device, cut_rows(y.shape, runs_on_host ? few_rows : 1),
                   BatchNormPoolApply<T>{x.as<T>(), y.as<T>(), static_cast<T*>(saved.largest), saved.argmax, vectors, windows_of(x.shape, y.shape)}, Walk::backwards);
  });
}

void batch_norm_pool_grad_apply(const Device& device, Tensor x, Tensor grad_y, const GradIn& grad_x, const BatchNormVectors& vectors, const float* means,
                                const PoolSaved& saved) {
  dispatch(x.dtype, [&]<class T>(T) {
    for_each_block("batch_norm_pool.grad_apply", device, cut_rows(grad_y.shape, runs_on_host ? few_rows : 1),
                   BatchNormPoolGradApply<T>{x.as<T>(), grad_y.as<T>(), saved.argmax, grad_x.tensor.as<T>(), grad_x.mode == GradMode::add, vectors, means,
                                             windows_of(x.shape, grad_y.shape)});
  });
}

}  // namespace lockstep
