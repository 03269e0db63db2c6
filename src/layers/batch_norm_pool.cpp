#include "layers/batch_norm_pool.hpp"

#include "layers/pool_windows.hpp"

namespace lockstep {

/// The largest normalized value met, its place and what it was made of.  As max_pool: the first of equals; a NaN wins.
template <int width>
struct LargestOf {
  Lanes<width> value, place, x;
  LOCKSTEP_FUNCTION explicit LargestOf(int first_place) : value(zeros<width>()), place(value), x(value) {
    for (int p = 0; p < value.parts; ++p) value.v[p] -= Kokkos::Experimental::infinity_v<float>, place.v[p] += static_cast<float>(first_place);
  }
  LOCKSTEP_FUNCTION void meet(const Lanes<width>& z, const Lanes<width>& of, int at) {
    const Lanes<width> zero = zeros<width>();
    for (int p = 0; p < value.parts; ++p) {
      const auto wins = (z.v[p] > value.v[p]) | (z.v[p] != z.v[p]);
      value.v[p] = wins ? z.v[p] : value.v[p];
      place.v[p] = wins ? zero.v[p] + static_cast<float>(at) : place.v[p];
      x.v[p] = wins ? of.v[p] : x.v[p];
    }
  }
};

template <class T>
struct BatchNormPoolApply {
  using Element = T;
  const T* x;
  T* y;
  T* largest;
  std::uint8_t* argmax;
  BatchNormVectors vectors;
  Windows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    const BlockVectors<width> v(vectors, channel);
    Pixel o(begin, g.p, g.q);
    for (std::int64_t pixel = begin; pixel < end; ++pixel, o.advance()) {
      const Extent rows = places_inside(g, o.y, g.h), columns = places_inside(g, o.x, g.w);
      LargestOf<width> best(rows.first * g.kernel + columns.first);
      for (int r = rows.first; r < rows.end; ++r)
        for (int s = columns.first; s < columns.end; ++s) {
          const std::int64_t h = o.y * g.stride - g.pad + r, w = o.x * g.stride - g.pad + s;
          const Lanes<width> in = load<width>(x + ((o.n * g.h + h) * g.w + w) * g.c + channel);
          best.meet((in - v.mean) * v.scale + v.bias, in, r * g.kernel + s);
        }
      const std::int64_t out = pixel * g.c + channel;
      store(y + out, positive_part(best.value));
      if (argmax) store(argmax + out, best.place), store(largest + out, best.x);
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
  Windows g;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    const BlockVectors<width> v(vectors, channel);
    const Lanes<width> constant = means ? load<width>(means + channel) : zeros<width>();
    const Lanes<width> slope = means ? load<width>(means + g.c + channel) * load<width>(vectors.inv_std + channel) : zeros<width>();
    Pixel i(begin, g.h, g.w);
    for (std::int64_t pixel = begin; pixel < end; ++pixel, i.advance()) {
      const Extent rows = windows_around(g, i.y, g.p), columns = windows_around(g, i.x, g.q);
      Lanes<width> sum = zeros<width>();
      for (int p = rows.first; p < rows.end; ++p)
        for (int q = columns.first; q < columns.end; ++q) {
          const std::int64_t from = ((i.n * g.p + p) * g.q + q) * g.c + channel;
          const int place = (i.y + g.pad - p * g.stride) * g.kernel + i.x + g.pad - q * g.stride;
          sum = sum + where_equal(argmax + from, static_cast<std::uint8_t>(place), load<width>(grad_y + from));
        }
      const std::int64_t at = pixel * g.c + channel;
      const Lanes<width> centered = load_last<width>(x + at) - v.mean, gradient = where_positive(centered * v.scale + v.bias, sum);
      const Lanes<width> d = (gradient - constant - centered * slope) * v.scale;
      store(grad_x + at, adds ? load<width>(grad_x + at) + d : d);
    }
  }
};

void batch_norm_pool_apply(const Device& device, Tensor x, Tensor y, const PoolWindow& window, const BatchNormVectors& vectors, const PoolSaved& saved) {
  dispatch(x.dtype, [&]<class T>(T) {
    for_each_block("batch_norm_pool.apply", device, cut_pixels(y.shape),
                   BatchNormPoolApply<T>{x.as<T>(), y.as<T>(), static_cast<T*>(saved.largest), saved.argmax, vectors, windows_of(x.shape, y.shape, window)}, Walk::backwards);
  });
}

void batch_norm_pool_grad_apply(const Device& device, Tensor x, Tensor grad_y, const GradIn& grad_x, const PoolWindow& window, const BatchNormVectors& vectors,
                                const float* means, const PoolSaved& saved) {
  dispatch(x.dtype, [&]<class T>(T) {
    for_each_block("batch_norm_pool.grad_apply", device, cut_pixels(x.shape),
                   BatchNormPoolGradApply<T>{x.as<T>(), grad_y.as<T>(), saved.argmax, grad_x.tensor.as<T>(), grad_x.mode == GradMode::add, vectors, means,
                                             windows_of(x.shape, grad_y.shape, window)});
  });
}

}  // namespace lockstep
