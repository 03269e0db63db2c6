// Batch norm, relu and the stem's max pool as one pass, in every element type, against a float64 loop over pixels.
#include "layers/batch_norm_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/layers_reference.hpp"
#include "support/test_tensor.hpp"

namespace lockstep::test {
namespace {

/// What a call is given for each channel; 1 / std is 1.
struct Channels {
  Doubles mean, weight, bias;
  explicit Channels(std::int64_t c) : mean(doubles(noise(c, 3))), weight(doubles(noise(c, 4))), bias(doubles(noise(c, 5))) {}
};
class ChannelsOnDevice {
 public:
  ChannelsOnDevice(Device& device, const Channels& c)
      : mean_(device, shape_of(c), DType::f32, c.mean), inv_std_(device, shape_of(c), DType::f32, Doubles(c.mean.size(), 1)), weight_(device, shape_of(c), DType::f32, c.weight),
        bias_(device, shape_of(c), DType::f32, c.bias) {}
  BatchNormVectors vectors() const {
    const auto values = [](const TestTensor& t) { return Tensor(t).as<float>(); };
    return {values(mean_), values(inv_std_), values(weight_), values(bias_)};
  }

 private:
  static Shape shape_of(const Channels& c) { return vector_shape(std::ssize(c.mean)); }
  TestTensor mean_, inv_std_, weight_, bias_;
};

struct Truth {
  Doubles y, largest, grad_x;
};

/// grad_x: with mean and 1 / std as constants.
Truth loop(const Shape& s, const Shape& out, const Doubles& x, const Doubles& grad_y, const Channels& channels) {
  Truth t{Doubles(static_cast<std::size_t>(out.size())), Doubles(static_cast<std::size_t>(out.size())), Doubles(static_cast<std::size_t>(s.size()))};
  std::size_t at = 0;
  for (std::int64_t n = 0; n < out.n; ++n)
    for (std::int64_t p = 0; p < out.h; ++p)
      for (std::int64_t q = 0; q < out.w; ++q)
        for (std::int64_t c = 0; c < out.c; ++c, ++at) {
          const auto channel = static_cast<std::size_t>(c);
          const double mean = channels.mean[channel], scale = channels.weight[channel], bias = channels.bias[channel];
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

/// Few different values, so that windows have equals; has_infinities: one of 37 is infinite.
Doubles coarse(std::int64_t count, std::uint64_t stream, bool has_infinities) {
  Doubles values = doubles(noise(count, stream, 2));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::round(2 * values[i]) / 2;
    if (has_infinities && i % 37 == 0) values[i] = (i % 2 == 0 ? 1 : -1) * std::numeric_limits<double>::infinity();
  }
  return values;
}

std::vector<float> floats(const TestTensor& tensor) {
  const Numbers numbers = tensor.numbers();
  return {numbers.begin(), numbers.end()};
}

class BatchNormPool : public testing::TestWithParam<DType> {};

TEST_P(BatchNormPool, TakesTheFirstLargestOfEachWindowAndSendsItsGradientThere) {
  Device device;
  const DType dtype = GetParam();
  for (const Shape& s : {Shape{2, 8, 8, 16}, Shape{3, 7, 9, 8}, Shape{1, 1, 1, 8}, Shape{2, 2, 5, 64}, Shape{2, 6, 4, 3}, Shape{1, 5, 5, 12}}) {
    SCOPED_TRACE(testing::Message() << s.n << " x " << s.h << " x " << s.w << " x " << s.c);
    const Shape out = stem_window.output(s);
    const Doubles x = coarse(s.size(), 1, false), grad_y = coarse(out.size(), 2, false);
    Channels channels(s.c);
    for (std::size_t c = 0; c < channels.weight.size(); c += 3) channels.weight[c] = 0;               // all are equal
    const TestTensor in(device, s, dtype, x), grad(device, out, dtype, grad_y), y(device, out, dtype), largest(device, out, dtype), grad_x(device, s, dtype),
        places(device, vector_shape(out.size()), DType::u8);
    const ChannelsOnDevice on_device(device, channels);
    const PoolSaved saved{Tensor(places).as<std::uint8_t>(), Tensor(largest).data};
    batch_norm_pool_apply(device, in, y, on_device.vectors(), saved);
    batch_norm_pool_grad_apply(device, in, grad, {grad_x, GradMode::write}, on_device.vectors(), nullptr, saved);
    device.wait();
    const Truth want = loop(s, out, x, grad_y, channels);
    EXPECT_LT(distance(want.y, floats(y)), 2 * rounding(dtype));
    EXPECT_EQ(distance(want.largest, floats(largest)), 0);
    EXPECT_LT(distance(want.grad_x, floats(grad_x)), 2 * rounding(dtype));
    for (const TestTensor* tensor : {&in, &grad, &y, &largest, &grad_x, &places}) EXPECT_TRUE(tensor->is_margin_intact());
  }
}

TEST_P(BatchNormPool, HandsOnInfinitiesAndNaN) {
  Device device;
  const DType dtype = GetParam();
  const Shape s{2, 9, 9, 16}, out = stem_window.output(s);
  Doubles x = coarse(s.size(), 1, true);
  for (std::size_t i = 0; i < x.size(); i += 101) x[i] = std::numeric_limits<double>::quiet_NaN();
  const Channels channels(s.c);
  const TestTensor in(device, s, dtype, x), y(device, out, dtype);
  const ChannelsOnDevice on_device(device, channels);
  batch_norm_pool_apply(device, in, y, on_device.vectors(), {});
  device.wait();
  const Truth want = loop(s, out, x, Doubles(static_cast<std::size_t>(out.size())), channels);
  const Numbers got = y.numbers();
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
