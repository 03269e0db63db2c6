// batch_norm_kernels: the passes over memory that batch norm is made of.  Forward: sum, finish, apply.  Backward: sum, finish, apply.
// Each array is read once a pass; a pass over a chunk of rows leaves partial sums, a small kernel adds the chunks in order, in f64.
#pragma once
#include "graph/graph.hpp"
#include "layers/lanes.hpp"

namespace lockstep {

/// Where the relu's zeros are known from in backward.
enum class Mask {
  none,       // there is no relu, or grad_out has its zeros already
  recompute,  // the sign of the normalized x: costs no memory traffic
  output,     // the sign of y
  bits,       // a byte a packet that forward left, one bit a lane: a sixteenth of y
};

/// Whether forward leaves bits: on a GPU, where rows are whole packets, each of which one thread reads and writes.
inline bool has_mask_bits(DType dtype, std::int64_t c) { return !runs_on_host && c % (16 / static_cast<std::int64_t>(size_of(dtype))) == 0; }

inline std::size_t mask_bits_bytes(const Shape& x, DType dtype) { return static_cast<std::size_t>(x.size()) * size_of(dtype) / 16; }

/// Per-channel vectors of one call, f32 [c].
struct BatchNormVectors {
  const float *mean, *inv_std, *weight, *bias;
};

/// What one normalization leaves for backward, f32: mean and 1 / std of each channel, 1 / values of a channel in the group.
struct BatchNormState {
  float *mean, *inv_std, *inverse_count;
  static std::int64_t room(std::int64_t count) { return (count + 7) / 8 * 8; }   // each array begins a packet
  static std::size_t bytes(std::int64_t c) { return static_cast<std::size_t>(2 * room(c) + room(1)) * sizeof(float); }
  BatchNormState(std::int64_t c, void* memory) : mean(static_cast<float*>(memory)), inv_std(mean + room(c)), inverse_count(inv_std + room(c)) {}
};

/// Numbers that travel between ranks: [sums of x - K; sums of squares; count % 4096; count / 4096].  Both parts stay exact in f32.
inline constexpr int count_parts = 2;
inline constexpr float count_base = 4096;

/// What becomes of forward's two sums of one channel: this rank's totals, for an exchange, or statistics at once.
struct ForwardEnd {
  bool is_local = true;                  // no exchange: the sums are the group's
  std::int64_t c = 0, rows = 0;
  double momentum = 0, epsilon = 0;
  float* totals = nullptr;               // [2c + count_parts]
  float *running_mean = nullptr, *running_var = nullptr, *mean = nullptr, *inv_std = nullptr, *inverse_count = nullptr;

  static constexpr int count = 2;
  LOCKSTEP_FUNCTION void operator()(std::int64_t i, const double* sums) const { take(i, sums[0], sums[1]); }
  LOCKSTEP_FUNCTION void take(std::int64_t i, double sum, double squares) const {
    if (is_local) return finish(i, static_cast<float>(sum), static_cast<float>(squares), static_cast<double>(rows));
    totals[i] = static_cast<float>(sum);
    totals[c + i] = static_cast<float>(squares);
    if (i != 0) return;
    const auto base = static_cast<std::int64_t>(count_base);
    totals[2 * c] = static_cast<float>(rows % base);
    totals[2 * c + 1] = static_cast<float>(rows / base);
  }
  /// From the group's totals.
  LOCKSTEP_FUNCTION void finish_exchanged(std::int64_t i) const {
    finish(i, totals[i], totals[c + i], static_cast<double>(totals[2 * c]) + static_cast<double>(count_base) * totals[2 * c + 1]);
  }
  /// Mean and 1 / std of channel i; advances the running statistics.  No values at all: nothing advances.
  LOCKSTEP_FUNCTION void finish(std::int64_t i, float sum, float squares, double count) const {
    double variance = running_var[i], center = running_mean[i];
    if (count > 0) {
      const double offset = sum / count;
      center += offset;
      variance = squares / count - offset * offset;
      if (variance < 0) variance = 0;                                    // rounding; a NaN stays one
      const double unbiased = count > 1 ? variance * (count / (count - 1)) : variance;
      running_mean[i] = static_cast<float>((1 - momentum) * running_mean[i] + momentum * center);
      running_var[i] = static_cast<float>((1 - momentum) * running_var[i] + momentum * unbiased);
    }
    mean[i] = static_cast<float>(center);
    inv_std[i] = static_cast<float>(1 / Kokkos::sqrt(variance + epsilon));
    if (i == 0) *inverse_count = count > 0 ? static_cast<float>(1 / count) : 0.f;
  }
};

/// From sums of x and of its square.
struct RawForwardEnd {
  ForwardEnd end;
  const float* center;
  static constexpr int count = 2;
  LOCKSTEP_FUNCTION void operator()(std::int64_t i, const double* sums) const {
    const double rows = static_cast<double>(end.rows), k = center[i];
    end.take(i, sums[0] - rows * k, sums[1] - 2 * k * sums[0] + rows * k * k);
  }
};

/// What becomes of backward's two sums of one channel, of g and of g * (x - mean): this rank's gradients of weight and bias, and in totals the
/// group's means of g and of g * xhat, or for an exchange the sums.
struct BackwardEnd {
  bool is_local = true;
  std::int64_t c = 0;
  const float *inv_std = nullptr, *inverse_count = nullptr;
  float *grad_weight = nullptr, *grad_bias = nullptr;   // null: not wanted
  bool adds = false;                                    // to the gradients
  float* totals = nullptr;                              // [2c]

  static constexpr int count = 2;
  LOCKSTEP_FUNCTION void operator()(std::int64_t i, const double* sums) const { take(i, sums[0], sums[1]); }
  LOCKSTEP_FUNCTION void take(std::int64_t i, double sum, double products) const {
    const auto g = static_cast<float>(sum), gx = static_cast<float>(products);
    if (grad_weight) grad_weight[i] = (adds ? grad_weight[i] : 0.f) + gx * inv_std[i];
    if (grad_bias) grad_bias[i] = (adds ? grad_bias[i] : 0.f) + g;
    totals[i] = g, totals[c + i] = gx;
    if (is_local) average(i);
  }
  LOCKSTEP_FUNCTION void average(std::int64_t i) const {
    totals[i] *= *inverse_count;
    totals[c + i] *= *inverse_count * inv_std[i];
  }
};

/// Of two normalizations whose outputs were added: sums of g, of g * (a - mean of a), of g * (b - mean of b).
struct PairBackwardEnd {
  BackwardEnd a, b;
  static constexpr int count = 3;
  LOCKSTEP_FUNCTION void operator()(std::int64_t i, const double* sums) const { a.take(i, sums[0], sums[1]), b.take(i, sums[0], sums[2]); }
};

/// Passes without sums take few rows of all blocks before the next few rows: their reads and writes then stay near one another.
inline constexpr std::int64_t few_rows = 8;
/// The affine map of one block of channels: (x - mean) * scale + bias.
template <int width>
struct BlockVectors {
  Lanes<width> mean, scale, bias;
  LOCKSTEP_FUNCTION BlockVectors(const BatchNormVectors& v, std::int64_t channel)
      : mean(load<width>(v.mean + channel)), scale(load<width>(v.inv_std + channel) * load<width>(v.weight + channel)), bias(load<width>(v.bias + channel)) {}
};

/// y = (x - mean) * inv_std * weight + bias (+ residual) (relu).  A NaN stays one.
template <class T, bool has_residual, bool has_relu>
struct BatchNormApply {
  using Element = T;
  const T *x, *residual;
  T* y;
  std::uint8_t* bits;                    // for Mask::bits; null: not wanted
  BatchNormVectors vectors;
  std::int64_t c;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    const BlockVectors<width> v(vectors, channel);
    for_rows(begin, end, [&]<int rows>(std::int64_t row, std::integral_constant<int, rows>) {
      const std::int64_t at = row * c + channel, ahead = at + few_rows * c;
      prefetch(x + ahead), prefetch_for_writing(y + ahead);
      if (has_residual) prefetch(residual + ahead);
      Raw<width, T> xs[rows], residuals[rows];
      for (int i = 0; i < rows; ++i) xs[i] = load_raw_last<width>(x + at + i * c);
      for (int i = 0; has_residual && i < rows; ++i) residuals[i] = load_raw<width>(residual + at + i * c);
      for (int i = 0; i < rows; ++i) {
        Lanes<width> z = (xs[i].lanes() - v.mean) * v.scale + v.bias;
        if (has_residual) z = z + residuals[i].lanes();
        if constexpr (!runs_on_host && has_relu && width > 1)
          if (bits) bits[(at + i * c) / width] = positive_bits(z);
        if (has_relu) z = positive_part(z);
        store(y + at + i * c, z);
      }
    });
  }
};

/// What backward knows of the relu at a packet.
template <Mask mask, int width, class T>
struct MaskPacket {
  std::conditional_t<mask == Mask::output, Raw<width, T>, std::uint8_t> known;
  /// source: y, or the bits.
  LOCKSTEP_FUNCTION void read(const void* source, std::int64_t at) {
    if constexpr (mask == Mask::output) known = load_raw<width>(static_cast<const T*>(source) + at);
    if constexpr (mask == Mask::bits) known = static_cast<const std::uint8_t*>(source)[at / width];
  }
  /// g under the relu's mask.
  LOCKSTEP_FUNCTION Lanes<width> operator()(const Lanes<width>& g, const Lanes<width>& centered, const BlockVectors<width>& v) const {
    if constexpr (mask == Mask::output) return where_positive(known.lanes(), g);
    else if constexpr (mask == Mask::recompute) return where_positive(centered * v.scale + v.bias, g);
    else if constexpr (mask == Mask::bits && !runs_on_host) return where_set(known, g);
    else return g;
  }
};

/// What x's gradient takes from g: weight * inv_std * (g - mean_grad - xhat * mean_grad_xhat).
template <int width>
struct GradMap {
  BlockVectors<width> v;
  Lanes<width> constant = zeros<width>(), slope = zeros<width>();
  /// means: [2, c], of g and of g * xhat over the group; null: statistics are constants.
  LOCKSTEP_FUNCTION GradMap(const BatchNormVectors& vectors, const float* means, std::int64_t c, std::int64_t channel) : v(vectors, channel) {
    if (means) constant = load<width>(means + channel), slope = load<width>(means + c + channel) * load<width>(vectors.inv_std + channel);
  }
  /// centered: x - mean.
  LOCKSTEP_FUNCTION Lanes<width> operator()(const Lanes<width>& centered, const Lanes<width>& g) const { return (g - constant - centered * slope) * v.scale; }
};

/// grad_x = weight * inv_std * (g - mean_grad - xhat * mean_grad_xhat), or += that.  means: as GradMap's.
template <class T, Mask mask>
struct BatchNormGradApply {
  using Element = T;
  const T *x, *grad_out;
  const void* mask_source;
  T* grad_x;
  bool adds;
  BatchNormVectors vectors;
  const float* means;
  std::int64_t c;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    const GradMap<width> map(vectors, means, c, channel);
    for_rows(begin, end, [&]<int rows>(std::int64_t row, std::integral_constant<int, rows>) {
      const std::int64_t at = row * c + channel, ahead = at + few_rows * c;
      prefetch(x + ahead), prefetch(grad_out + ahead), prefetch_for_writing(grad_x + ahead);
      if (mask == Mask::output) prefetch(static_cast<const T*>(mask_source) + ahead);
      Raw<width, T> xs[rows], gs[rows];
      MaskPacket<mask, width, T> masks[rows];
      for (int i = 0; i < rows; ++i) xs[i] = load_raw_last<width>(x + at + i * c), gs[i] = load_raw_last<width>(grad_out + at + i * c), masks[i].read(mask_source, at + i * c);
      for (int i = 0; i < rows; ++i) {
        const Lanes<width> centered = xs[i].lanes() - map.v.mean, d = map(centered, masks[i](gs[i].lanes(), centered, map.v));
        store(grad_x + at + i * c, adds ? load<width>(grad_x + at + i * c) + d : d);
      }
    });
  }
};

}  // namespace lockstep
