#include "layers/batch_norm_pool.hpp"

#include "layers/pairs.hpp"

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
  /// word: four bits a lane, the first lane's lowest.
  LOCKSTEP_FUNCTION static void write(std::uint8_t* places, std::int64_t at, Word word) { reinterpret_cast<Word*>(places)[at / width] = word; }
  LOCKSTEP_FUNCTION static void write(std::uint8_t* places, std::int64_t at, const Lanes<width>& numbers) {
    if constexpr (is_packed) {
      std::uint32_t word = 0;
      for (int i = 0; i < width; ++i) word |= static_cast<std::uint32_t>(numbers.v[i]) << 4 * i;
      write(places, at, static_cast<Word>(word));
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

/// Of each lane of a window's nine packets, x and the place of the first that is largest in the lane's direction (-1, 0 or 1); a NaN wins.
template <class T, int width>
struct LargestOfWindow {
  Lanes<width> x = zeros<width>(), place = zeros<width>();

  /// counts: which of the nine.
  LOCKSTEP_FUNCTION LargestOfWindow(const Raw<width, T> (&xs)[9], const bool (&counts)[9], const Lanes<width>& direction) {
    const Lanes<width> zero = zeros<width>();
    Lanes<width> best = zero;
    for (int p = 0; p < best.parts; ++p) best.v[p] -= Kokkos::Experimental::infinity_v<float>;
    for (int k = 0; k < 9; ++k) {
      if (!counts[k]) continue;
      const Lanes<width> in = xs[k].lanes(), key = in * direction;
      for (int p = 0; p < key.parts; ++p) {
        const auto wins = (key.v[p] > best.v[p]) | (key.v[p] != key.v[p]);
        best.v[p] = wins ? key.v[p] : best.v[p];
        x.v[p] = wins ? in.v[p] : x.v[p];
        place.v[p] = wins ? zero.v[p] + static_cast<float>(k) : place.v[p];
      }
    }
  }
  LOCKSTEP_FUNCTION Lanes<width> lanes() const { return x; }
  LOCKSTEP_FUNCTION void save(T* largest, std::uint8_t* argmax, std::int64_t at) const { Places<width>::write(argmax, at, place), store(largest + at, x); }
};

/// The same, two lanes at once: as floats, its 75 instructions a window and channel took 0.42 ms of a ResNet-50 step in fp16 on an H200, now 0.26; its bytes are worth 0.15.
template <class T>
  requires(sizeof(T) == 2)
struct LargestOfWindow<T, 8> {
  static_assert(Raw<8, T>::is_packet);
  Packet<16> x{}, place{};               // pairs

  LOCKSTEP_FUNCTION LargestOfWindow(const Raw<8, T> (&xs)[9], const bool (&counts)[9], const Lanes<8>& direction) {
    const T lowest(-Kokkos::Experimental::infinity_v<float>);
    for (int p = 0; p < 4; ++p) {
      const std::uint32_t sign = pair_of(T(direction.v[2 * p]), T(direction.v[2 * p + 1]));
      std::uint32_t best = pair_of(lowest, lowest);
      for (int k = 0; k < 9; ++k)
        if (counts[k]) best = pair_largest<T>(best, pair_times_sign<T>(xs[k].value.words[p], sign));
      for (int k = 8; k >= 0; --k) {     // the first of equals is the last to be taken
        if (!counts[k]) continue;
        const std::uint32_t is_best = pair_equal<T>(best, pair_times_sign<T>(xs[k].value.words[p], sign));
        x.words[p] = select_halves(is_best, xs[k].value.words[p], x.words[p]);
        place.words[p] = select_halves(is_best, static_cast<std::uint32_t>(k) * 0x10001u, place.words[p]);
      }
      x.words[p] |= pair_is_nan<T>(best) & 0x7fff7fffu;                    // every bit of exponent and mantissa: NaN
    }
  }
  LOCKSTEP_FUNCTION Lanes<8> lanes() const { return load<8>(reinterpret_cast<const T*>(&x)); }
  LOCKSTEP_FUNCTION void save(T* largest, std::uint8_t* argmax, std::int64_t at) const {
    std::uint32_t word = 0;
    for (int p = 0; p < 4; ++p) word |= ((place.words[p] & 15) | (place.words[p] >> 12 & 0xf0)) << 8 * p;
    Places<8>::write(argmax, at, word);
    *reinterpret_cast<Packet<16>*>(largest + at) = x;
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
    const Lanes<width> direction = sign(v.scale);
    for (std::int64_t window = begin; window < end; ++window) {
      const WindowAt at(window, g);
      const T* image = x + g.image(at.n, g.h, g.w) + channel;
      Raw<width, T> xs[9];               // all are asked for before the first is used; a place outside reads its neighbour inside, and does not count
      bool counts[9];
      for (int k = 0; k < 9; ++k) {
        const int row = 2 * at.i - 1 + k / 3, column = 2 * at.j - 1 + k % 3, near_row = inside(row, g.h), near_column = inside(column, g.w);
        counts[k] = near_row == row && near_column == column;
        xs[k] = load_raw<width>(image + g.pixel(near_row, near_column, g.w));
      }
      // As max_pool of relu's output, to rounding: where x is largest, or smallest under a negative weight, decides.
      const LargestOfWindow<T, width> found(xs, counts, direction);
      const std::int64_t out = window * g.c + channel;
      store(y + out, positive_part((found.lanes() - v.mean) * v.scale + v.bias));
      if (argmax) found.save(largest, argmax, out);
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
