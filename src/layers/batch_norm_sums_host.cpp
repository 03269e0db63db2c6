#include "layers/batch_norm_sums.hpp"

namespace lockstep {

/// Chunks: 32 KiB of a 16-channel block's lines, at least 64 rows, so that partial sums are few beside x; at most 1024.
inline constexpr std::int64_t least_rows = 64, most_chunks = 1024;
inline std::int64_t statistics_rows(std::int64_t c) { return c < 128 ? 8192 / (c < 16 ? 16 : c) : least_rows; }
inline RowCut cut_statistics(const Shape& x) {
  const std::int64_t rows = x.n * x.h * x.w, spread = (rows + most_chunks - 1) / most_chunks, each = statistics_rows(x.c);
  return cut_rows(x, each < spread ? spread : each);
}
/// At least cut_statistics(x).chunks() for this and every smaller batch.
inline std::int64_t chunk_bound(const Shape& x) {
  const std::int64_t chunks = cut_rows(x, statistics_rows(x.c)).chunks();
  return chunks < most_chunks ? chunks : most_chunks;
}

/// Rows that are asked for ahead of use.
inline constexpr std::int64_t rows_ahead = 16;

/// Rows summed one after another before they join the chunk's sum: rounding errors grow with 64 + rows / 64 instead of rows.
inline constexpr std::int64_t short_run = 64;

/// Sums of several things over a chunk of rows.
template <int count, int width>
struct Sums {
  Lanes<width> of[count];
  LOCKSTEP_FUNCTION Sums() {
    for (int k = 0; k < count; ++k) of[k] = zeros<width>();
  }
  LOCKSTEP_FUNCTION void add(const Sums& more) {
    for (int k = 0; k < count; ++k) of[k] = of[k] + more.of[k];
  }
  LOCKSTEP_FUNCTION void store_partial(float* partial, std::int64_t chunk, std::int64_t channel, std::int64_t c) const {
    for (int k = 0; k < count; ++k) store(partial + (chunk * count + k) * c + channel, of[k]);
  }
};

/// partial [chunks, 2, c] = sums of x - center and of its square.
template <class T>
struct BatchNormSum {
  using Element = T;
  const T* x;
  const float* center;
  float* partial;
  std::int64_t c;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t chunk, std::int64_t channel) const {
    const Lanes<width> k = load<width>(center + channel);
    Sums<2, width> total;
    for (std::int64_t row = begin; row < end;) {
      Sums<2, width> sum;
      const std::int64_t stop = row + short_run < end ? row + short_run : end;
      for (; row < stop; ++row) {
        prefetch(x + (row + rows_ahead) * c + channel);
        const Lanes<width> v = load<width>(x + row * c + channel) - k;
        sum.of[0] = sum.of[0] + v, sum.of[1] = sum.of[1] + v * v;
      }
      total.add(sum);
    }
    total.store_partial(partial, chunk, channel, c);
  }
};

/// partial [chunks, 2, c] = sums of g and of g * (x - mean), where g is grad_out under the relu's mask; residual_grad = g or += g.
template <class T, Mask mask>
struct BatchNormGradSum {
  using Element = T;
  const T *x, *grad_out;
  const void* mask_source;
  T* residual_grad;                      // null: not wanted
  bool adds_residual;
  BatchNormVectors vectors;
  float* partial;
  std::int64_t c;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t chunk, std::int64_t channel) const {
    const BlockVectors<width> v(vectors, channel);
    Sums<2, width> total;
    for (std::int64_t row = begin; row < end;) {
      Sums<2, width> sum;
      const std::int64_t stop = row + short_run < end ? row + short_run : end;
      for (; row < stop; ++row) {
        const std::int64_t at = row * c + channel, ahead = at + rows_ahead * c;
        prefetch(x + ahead), prefetch(grad_out + ahead);
        if (mask == Mask::output) prefetch(static_cast<const T*>(mask_source) + ahead);
        if (residual_grad) prefetch_for_writing(residual_grad + ahead);
        MaskPacket<mask, width, T> known;
        known.read(mask_source, at);
        const Lanes<width> centered = load<width>(x + at) - v.mean, g = known(load<width>(grad_out + at), centered, v);
        sum.of[0] = sum.of[0] + g, sum.of[1] = sum.of[1] + g * centered;
        if (residual_grad) store(residual_grad + at, adds_residual ? load<width>(residual_grad + at) + g : g);
      }
      total.add(sum);
    }
    total.store_partial(partial, chunk, channel, c);
  }
};

/// partial [chunks, 3, c] = sums of g, of g * (a - its mean) and of g * (b - its mean), where g is grad_out under the relu's mask.
template <class T>
struct PairGradSum {
  using Element = T;
  const T *a, *b, *grad_out, *y;
  BatchNormVectors of_a, of_b;
  float* partial;
  std::int64_t c;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t chunk, std::int64_t channel) const {
    const Lanes<width> mean_a = load<width>(of_a.mean + channel), mean_b = load<width>(of_b.mean + channel);
    Sums<3, width> total;
    for (std::int64_t row = begin; row < end;) {
      Sums<3, width> sum;
      const std::int64_t stop = row + short_run < end ? row + short_run : end;
      for (; row < stop; ++row) {
        const std::int64_t at = row * c + channel, ahead = at + rows_ahead * c;
        prefetch(a + ahead), prefetch(b + ahead), prefetch(grad_out + ahead), prefetch(y + ahead);
        const Lanes<width> g = where_positive(load<width>(y + at), load<width>(grad_out + at));
        sum.of[0] = sum.of[0] + g;
        sum.of[1] = sum.of[1] + g * (load<width>(a + at) - mean_a);
        sum.of[2] = sum.of[2] + g * (load<width>(b + at) - mean_b);
      }
      total.add(sum);
    }
    total.store_partial(partial, chunk, channel, c);
  }
};

/// end(channel, sums) of the partial sums of all chunks, taken in order.
template <class End>
void batch_norm_add_chunks(const Device& device, std::int64_t chunks, std::int64_t c, const float* partial, const End& end) {
  Kokkos::parallel_for("batch_norm.add_chunks", range(device, c), KOKKOS_LAMBDA(std::int64_t i) {
    double sums[End::count] = {};
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
      for (int k = 0; k < End::count; ++k) sums[k] += partial[(chunk * End::count + k) * c + i];
    end(i, sums);
  });
}

namespace {

template <class T, Mask mask>
void grad_sum(const Device& device, const GradSumArguments& a, const RowCut& cut, float* partial) {
  for_each_block("batch_norm.grad_sum", device, cut,
                 BatchNormGradSum<T, mask>{a.x.as<T>(), a.grad_out.as<T>(), a.mask_source, a.residual.as<T>(), a.adds_residual, a.vectors, partial, cut.c});
}

}  // namespace

std::int64_t batch_norm_partials(const Shape& x, DType, int sums) { return chunk_bound(x) * sums * x.c; }

void batch_norm_sums(const Device& device, Tensor x, const float* center, float* partial, const ForwardEnd& end) {
  const RowCut cut = cut_statistics(x.shape);
  dispatch(x.dtype, [&]<class T>(T) { for_each_block("batch_norm.sum", device, cut, BatchNormSum<T>{x.as<T>(), center, partial, cut.c}); });
  batch_norm_add_chunks(device, cut.chunks(), cut.c, partial, end);
}

void batch_norm_take_sums(const Device& device, Tensor sums, const RawForwardEnd& end) {
  batch_norm_add_chunks(device, sums.size() / (2 * end.end.c), end.end.c, sums.as<float>(), end);
}

void batch_norm_grad_sums(const Device& device, const GradSumArguments& a, float* partial, const BackwardEnd& end) {
  const RowCut cut = cut_statistics(a.x.shape);
  dispatch(a.x.dtype, [&]<class T>(T) {
    if (a.mask == Mask::none) grad_sum<T, Mask::none>(device, a, cut, partial);
    else if (a.mask == Mask::output) grad_sum<T, Mask::output>(device, a, cut, partial);
    else grad_sum<T, Mask::recompute>(device, a, cut, partial);
  });
  batch_norm_add_chunks(device, cut.chunks(), cut.c, partial, end);
}

void batch_norm_pair_grad_sums(const Device& device, const PairGradSumArguments& a, float* partial, const PairBackwardEnd& end) {
  const RowCut cut = cut_statistics(a.a.shape);
  dispatch(a.a.dtype, [&]<class T>(T) {
    for_each_block("batch_norm_pair.grad_sum", device, cut,
                   PairGradSum<T>{a.a.as<T>(), a.b.as<T>(), a.grad_out.as<T>(), static_cast<const T*>(a.mask_source), a.of_a, a.of_b, partial, cut.c});
  });
  batch_norm_add_chunks(device, cut.chunks(), cut.c, partial, end);
}

}  // namespace lockstep
