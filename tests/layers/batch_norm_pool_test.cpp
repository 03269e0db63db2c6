// Batch norm, relu and the stem's max pool as one pass, in every element type, against a float64 loop over pixels.
#include "layers/batch_norm_pool.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "support/device_array.hpp"
#include "support/layers_reference.hpp"

namespace lockstep::test {
namespace {

/// Values in device memory as T.
class Stored {
 public:
  Stored(Device& device, const Shape& shape, DType dtype, const std::vector<float>& values = {})
      : device_(device), memory_(device.allocate(static_cast<std::size_t>(shape.size()) * size_of(dtype))), tensor{memory_.data(), shape, dtype} {
    if (!values.empty()) dispatch(dtype, [&]<class T>(T) {
      std::vector<T> rounded;
      for (const float v : values) rounded.push_back(T(v));
      device.copy_to_device(memory_.data(), rounded.data(), tensor.bytes());
    });
    device.wait();
  }
  std::vector<float> get() const {
    return dispatch(tensor.dtype, [&]<class T>(T) {
      std::vector<T> held(static_cast<std::size_t>(tensor.size()));
      device_.copy_to_host(held.data(), tensor.data, tensor.bytes());
      device_.wait();
      return std::vector<float>(held.begin(), held.end());
    });
  }

 private:
  Device& device_;
  Allocation memory_;

 public:
  Tensor tensor;
};

struct Truth {
  Doubles y, largest, grad_x;
};

/// vectors: mean, 1 / std, weight, bias of each channel.  grad_x: with mean and 1 / std as constants.
Truth loop(const Shape& s, const Shape& out, const std::vector<float>& x, const std::vector<float>& grad_y, const std::vector<std::vector<float>>& vectors) {
  Truth t{Doubles(static_cast<std::size_t>(out.size())), Doubles(static_cast<std::size_t>(out.size())), Doubles(static_cast<std::size_t>(s.size()))};
  std::size_t at = 0;
  for (std::int64_t n = 0; n < out.n; ++n)
    for (std::int64_t p = 0; p < out.h; ++p)
      for (std::int64_t q = 0; q < out.w; ++q)
        for (std::int64_t c = 0; c < out.c; ++c, ++at) {
          const auto channel = static_cast<std::size_t>(c);
          const double mean = vectors[0][channel], scale = static_cast<double>(vectors[1][channel]) * vectors[2][channel], bias = vectors[3][channel];
          std::size_t best = 0;
          double key = 0;
          bool has_one = false;
          for (std::int64_t h = std::max<std::int64_t>(0, 2 * p - 1); h <= std::min(s.h - 1, 2 * p + 1); ++h)
            for (std::int64_t w = std::max<std::int64_t>(0, 2 * q - 1); w <= std::min(s.w - 1, 2 * q + 1); ++w) {
              const auto here = static_cast<std::size_t>(((n * s.h + h) * s.w + w) * s.c + c);
              const double k = scale == 0 ? 0 : scale > 0 ? x[here] : -x[here];
              if (!has_one || k > key || std::isnan(x[here])) has_one = true, best = here, key = k;
            }
          const double normalized = (x[best] - mean) * scale + bias;
          t.largest[at] = x[best], t.y[at] = std::isnan(normalized) ? normalized : std::max(normalized, 0.0);
          if (normalized > 0) t.grad_x[best] += scale * grad_y[at];
        }
  return t;
}

/// Few different values, so that windows have equals; `special` of them are infinite.
std::vector<float> coarse(std::int64_t count, std::uint64_t stream, bool has_infinities) {
  std::vector<float> values = noise(count, stream, 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::round(2 * values[i]) / 2;
    if (has_infinities && i % 37 == 0) values[i] = (i % 2 == 0 ? 1.f : -1.f) * std::numeric_limits<float>::infinity();
  }
  return values;
}

class BatchNormPool : public testing::TestWithParam<DType> {};

TEST_P(BatchNormPool, TakesTheFirstLargestOfEachWindowAndSendsItsGradientThere) {
  Device device;
  const DType dtype = GetParam();
  for (const Shape& s : {Shape{2, 8, 8, 16}, Shape{3, 7, 9, 8}, Shape{1, 1, 1, 8}, Shape{2, 2, 5, 64}, Shape{2, 6, 4, 3}, Shape{1, 5, 5, 12}}) {
    SCOPED_TRACE(testing::Message() << s.n << " x " << s.h << " x " << s.w << " x " << s.c);
    const Shape out = stem_window.output(s);
    const std::vector<float> x = coarse(s.size(), 1, false), grad_y = coarse(out.size(), 2, false);
    std::vector<std::vector<float>> vectors{noise(s.c, 3), std::vector<float>(static_cast<std::size_t>(s.c), 1), noise(s.c, 4), noise(s.c, 5)};
    for (std::size_t c = 0; c < vectors[2].size(); c += 3) vectors[2][c] = 0;                         // a weight of zero: all are equal
    const Stored in(device, s, dtype, x), grad(device, out, dtype, grad_y), y(device, out, dtype), largest(device, out, dtype), grad_x(device, s, dtype);
    const DeviceArray mean(device, vectors[0]), inv_std(device, vectors[1]), weight(device, vectors[2]), bias(device, vectors[3]);
    const BatchNormVectors v{mean.tensor().as<float>(), inv_std.tensor().as<float>(), weight.tensor().as<float>(), bias.tensor().as<float>()};
    const Allocation places = device.allocate(static_cast<std::size_t>(out.size()));
    const PoolSaved saved{static_cast<std::uint8_t*>(places.data()), largest.tensor.data};
    batch_norm_pool_apply(device, in.tensor, y.tensor, v, saved);
    batch_norm_pool_grad_apply(device, in.tensor, grad.tensor, {grad_x.tensor, GradMode::write}, v, nullptr, saved);
    device.wait();
    const Truth want = loop(s, out, x, grad_y, vectors);
    EXPECT_LT(distance(want.y, y.get()), 2 * rounding(dtype));
    EXPECT_EQ(distance(want.largest, largest.get()), 0);
    EXPECT_LT(distance(want.grad_x, grad_x.get()), 2 * rounding(dtype));
  }
}

TEST_P(BatchNormPool, HandsOnInfinitiesAndNaN) {
  Device device;
  const DType dtype = GetParam();
  const Shape s{2, 9, 9, 16}, out = stem_window.output(s);
  std::vector<float> x = coarse(s.size(), 1, true);
  for (std::size_t i = 0; i < x.size(); i += 101) x[i] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::vector<float>> vectors{noise(s.c, 3), std::vector<float>(static_cast<std::size_t>(s.c), 1), noise(s.c, 4), noise(s.c, 5)};
  const Stored in(device, s, dtype, x), y(device, out, dtype);
  const DeviceArray mean(device, vectors[0]), inv_std(device, vectors[1]), weight(device, vectors[2]), bias(device, vectors[3]);
  const BatchNormVectors v{mean.tensor().as<float>(), inv_std.tensor().as<float>(), weight.tensor().as<float>(), bias.tensor().as<float>()};
  batch_norm_pool_apply(device, in.tensor, y.tensor, v, {});
  device.wait();
  const Truth want = loop(s, out, x, std::vector<float>(static_cast<std::size_t>(out.size())), vectors);
  const std::vector<float> got = y.get();
  int nan = 0, infinite = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(std::isnan(want.y[i]), std::isnan(got[i])) << i;
    EXPECT_EQ(std::isinf(want.y[i]), std::isinf(got[i])) << i;
    nan += std::isnan(got[i]), infinite += std::isinf(got[i]);
  }
  EXPECT_GT(nan, 20);
  EXPECT_GT(infinite, 50);
}

INSTANTIATE_TEST_SUITE_P(Types, BatchNormPool, testing::ValuesIn(compute_types()), [](const testing::TestParamInfo<DType>& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace lockstep::test
