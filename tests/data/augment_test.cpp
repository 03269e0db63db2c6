// augment: what the network sees, against Pillow, torchvision and a float64 loop.
#include "data/augment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "support/data_sets.hpp"
#include "support/python.hpp"

namespace lockstep {
namespace {

AugmentConfig config_of(const std::string& kind, std::int64_t size = 0) {
  AugmentConfig config;
  config.train = kind, config.size = size;
  if (kind != "pad_crop" && kind != "random_resized_crop") config.eval = kind;
  return config;
}

/// Runs the kernel on one image; [height, width, channels] in floats.
std::vector<float> run(const Augment& augment, const TestImage& image, Cut cut, std::int64_t channels = 3, DType dtype = DType::f32) {
  Device device;
  const Shape shape{1, augment.output_height(), augment.output_width(), channels};
  const Allocation pixels = device.allocate(image.pixels.size()), cuts = device.allocate(sizeof cut), labels = device.allocate(4);
  const Allocation memory = device.allocate(static_cast<std::size_t>(shape.size()) * size_of(dtype));
  cut.label = image.label;
  device.copy_to_device(pixels.data(), image.pixels.data(), image.pixels.size());
  device.copy_to_device(cuts.data(), &cut, sizeof cut);
  augment.enqueue(device, static_cast<const std::uint8_t*>(pixels.data()), static_cast<const Cut*>(cuts.data()), 1, {memory.data(), shape, dtype},
                  {labels.data(), vector_shape(1), DType::i32}, {.channels = channels});
  std::vector<float> out;
  dispatch(dtype, [&]<class T>(T) {
    std::vector<T> stored(static_cast<std::size_t>(shape.size()));
    device.copy_to_host(stored.data(), memory.data(), stored.size() * sizeof(T));
    for (const T value : stored) out.push_back(static_cast<float>(value));
  });
  std::int32_t label = -1;
  device.copy_to_host(&label, labels.data(), 4);
  EXPECT_EQ(label, image.label);
  return out;
}

/// mean = 0 and std = 1/255: the kernel's output is in gray levels.
Augment in_gray_levels(const AugmentConfig& config, bool is_training, const TestImage& image) {
  return Augment(config, is_training, 3, image.height, image.width, {0}, {1 / 255.0});
}

struct Difference {
  double mean = 0, largest = 0;
};
Difference difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  Difference d;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double e = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    d.mean += e / static_cast<double>(a.size()), d.largest = std::max(d.largest, e);
  }
  return d;
}

/// Pillow's bilinear filter in float64 and without rounding: the box of an image, resized, read inside the clip only.
std::vector<float> reference(const TestImage& image, const Cut& cut, std::int64_t height, std::int64_t width) {
  const auto weights = [](double begin, double extent, std::int64_t outputs, std::int64_t o, std::int64_t low, std::int64_t high) {
    const double scale = extent / static_cast<double>(outputs), support = std::max(1.0, scale), center = begin + (static_cast<double>(o) + 0.5) * scale;
    std::vector<double> w(static_cast<std::size_t>(high));
    double sum = 0;
    for (std::int64_t i = low; i < high; ++i) sum += w[static_cast<std::size_t>(i)] = std::max(0.0, 1 - std::abs(static_cast<double>(i) + 0.5 - center) / support);
    for (double& v : w) v /= sum;
    return w;
  };
  std::vector<float> out;
  for (std::int64_t y = 0; y < height; ++y) {
    const auto rows = weights(cut.top, cut.box_height, height, y, cut.clip_top, cut.clip_bottom);
    for (std::int64_t x = 0; x < width; ++x) {
      const auto columns = weights(cut.left, cut.box_width, width, cut.flip ? width - 1 - x : x, cut.clip_left, cut.clip_right);
      for (std::int64_t c = 0; c < 3; ++c) {
        double sum = 0;
        for (std::size_t i = 0; i < rows.size(); ++i)
          if (rows[i] > 0)
            for (std::size_t k = 0; k < columns.size(); ++k)
              if (columns[k] > 0) sum += rows[i] * columns[k] * image.pixels[(i * static_cast<std::size_t>(image.width) + k) * 3 + static_cast<std::size_t>(c)];
        out.push_back(static_cast<float>(sum));
      }
    }
  }
  return out;
}

// Positions are floats: 2^-12 of a pixel at the far end of a wide image; one pixel is at most 255 gray levels.
TEST(Augment, ResizesAsTheFloat64LoopDoes) {
  for (const auto& [height, width, size] : {std::tuple{60, 80, 32}, {32, 32, 57}, {40, 13, 24}, {7, 200, 16}, {5, 2500, 20}, {1, 1, 8}, {33, 3, 1}}) {
    const TestImage image = test_image(height, width, 5);
    for (const char* kind : {"resize", "random_resized_crop"}) {
      AugmentConfig config = config_of(kind, size);
      config.flip = true;
      const Augment augment = in_gray_levels(config, true, image);
      for (int sample = 0; sample < 6; ++sample) {
        SCOPED_TRACE(text_of(kind, " of ", height, "x", width, " to ", size, ", sample ", sample));
        const Cut cut = augment.cut(1, sample, height, width);
        EXPECT_LT(difference(run(augment, image, cut), reference(image, cut, size, size)).largest, 0.02);
      }
    }
  }
}

// Pillow rounds to whole gray levels after each of its two passes: at most 0.5 + 0.5 from ours, and 1/4 + 1/4 in the mean.
TEST(Augment, ResizesAsPillowDoesUpToItsRounding) {
  if (!python_has("PIL") || !python_has("numpy")) GTEST_SKIP() << "no python3-pil";
  const ScratchFolder folder;
  const std::string script = R"(
import sys, numpy
from PIL import Image
for line in sys.argv[2].splitlines():
    source, name, height, width, top, left, bottom, right, size, flip = [int(word) if word.isdigit() else word for word in line.split()]
    image = Image.fromarray(numpy.fromfile(sys.argv[1] + "/" + source, dtype=numpy.uint8).reshape(height, width, 3))
    image = image.crop((left, top, right, bottom)).resize((size, size), Image.BILINEAR)
    if flip: image = image.transpose(Image.FLIP_LEFT_RIGHT)
    numpy.asarray(image).astype(numpy.float32).tofile(sys.argv[1] + "/" + name)
)";
  struct Case { TestImage image; std::int64_t size; std::string kind, name; int sample; };
  std::vector<Case> cases;
  std::string lines;
  const auto augment_of = [](const Case& c) {
    AugmentConfig config = config_of(c.kind, c.size);
    config.flip = true;
    return in_gray_levels(config, true, c.image);
  };
  for (const auto& [height, width, size] : {std::tuple{300, 400, 224}, {375, 500, 64}, {32, 32, 227}, {50, 90, 64}, {17, 23, 8}}) {
    const TestImage image = test_image(height, width, 6);
    const std::string source = text_of("image", height, "x", width);
    write_file(folder / source, bytes_of(image.pixels));
    for (const char* kind : {"resize", "random_resized_crop"})
      for (int sample = 0; sample < 4; ++sample) {
        const Case& c = cases.emplace_back(Case{image, size, kind, text_of(kind, "-", height, "x", width, "-to-", size, "-", sample), sample});
        const Cut cut = augment_of(c).cut(0, sample, height, width);
        lines += text_of(source, " ", c.name, " ", height, " ", width, " ", cut.clip_top, " ", cut.clip_left, " ", cut.clip_bottom, " ", cut.clip_right, " ", size,
                         " ", cut.flip, "\n");
      }
  }
  run_python(script, {folder.path(), lines});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Augment augment = augment_of(c);
    const Difference d = difference(run(augment, c.image, augment.cut(0, c.sample, c.image.height, c.image.width)), numbers_in<float>(folder / c.name));
    EXPECT_LT(d.mean, 0.5);
    EXPECT_LT(d.largest, 1.1);
  }
}

TEST(Augment, EvaluationIsTorchvisionsResizeCenterCropToTensorNormalize) {
  if (!python_has("torchvision")) GTEST_SKIP() << "no python3-torchvision";
  const ScratchFolder folder;
  const std::string script = R"(
import sys, numpy
from PIL import Image
from torchvision import transforms
for line in sys.argv[2].splitlines():
    name, height, width, short, size = [int(word) if word.isdigit() else word for word in line.split()]
    image = Image.fromarray(numpy.fromfile(sys.argv[1] + "/" + name, dtype=numpy.uint8).reshape(height, width, 3))
    steps = [transforms.Resize(short)] if short else []
    steps += [transforms.CenterCrop(size), transforms.ToTensor(), transforms.Normalize([.485, .456, .406], [.229, .224, .225])]
    transforms.Compose(steps)(image).permute(1, 2, 0).contiguous().numpy().tofile(sys.argv[1] + "/" + name)
)";
  struct Case { TestImage image; std::int64_t short_side, size; std::string name; };
  std::vector<Case> cases;
  std::string lines;
  for (const auto& [height, width, short_side, size] : {std::tuple{375, 500, 256, 224}, {500, 333, 256, 224}, {256, 341, 256, 224}, {40, 50, 64, 60}, {37, 52, 0, 32}}) {
    const Case& c = cases.emplace_back(Case{test_image(height, width, 7), short_side, size, text_of(height, "x", width, "-short-", short_side, "-crop-", size)});
    write_file(folder / c.name, bytes_of(c.image.pixels));
    lines += text_of(c.name, " ", height, " ", width, " ", short_side, " ", size, "\n");
  }
  run_python(script, {folder.path(), lines});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    AugmentConfig config = config_of("center_crop", c.size);
    config.eval_short = c.short_side, config.flip = true;   // which evaluation ignores
    const Augment augment(config, false, 3, c.image.height, c.image.width, {.485, .456, .406}, {.229, .224, .225});
    const Difference d = difference(run(augment, c.image, augment.cut(0, 0, c.image.height, c.image.width)), numbers_in<float>(folder / c.name));
    // A gray level is 1 / (255 * 0.224) = 0.0175; where nothing is resized only float's rounding remains.
    const bool is_copy = c.short_side == 0 || c.short_side == std::min(c.image.height, c.image.width);
    EXPECT_LT(d.mean, is_copy ? 1e-6 : 0.5 * 0.0175);
    EXPECT_LT(d.largest, is_copy ? 1e-5 : 1.1 * 0.0175);
  }
}

TEST(Augment, PadCropShowsTheImageMovedMirroredAndItsBorderBlackOrMean) {
  const TestImage image = test_image(32, 32, 8, 5);
  const double mean[] = {.4, .5, .6}, std[] = {.2, .25, .3};
  for (const char* fill : {"black", "mean"})
    for (int sample = 0; sample < 30; ++sample) {
      AugmentConfig config = config_of("pad_crop");
      config.flip = true, config.pad_fill = fill;
      const Augment augment(config, true, 3, 32, 32, {.4, .5, .6}, {.2, .25, .3});
      const Cut cut = augment.cut(2, sample, 32, 32);
      const std::vector<float> out = run(augment, image, cut);
      for (int y = 0, i = 0; y < 32; ++y)
        for (int x = 0; x < 32; ++x)
          for (int c = 0; c < 3; ++c, ++i) {
            const int row = y + static_cast<int>(cut.top), column = (cut.flip ? 31 - x : x) + static_cast<int>(cut.left);
            const bool is_border = row < 0 || row >= 32 || column < 0 || column >= 32;
            const double pixel = is_border ? 0 : image.pixels[static_cast<std::size_t>((row * 32 + column) * 3 + c)];
            const double want = is_border && std::string(fill) == "mean" ? 0 : (pixel / 255 - mean[c]) / std[c];
            ASSERT_NEAR(out[static_cast<std::size_t>(i)], want, 1e-5) << sample << ": " << y << " " << x << " " << c;
          }
    }
}

TEST(Augment, WritesEveryComputeTypeAndZerosInAddedChannels) {
  const TestImage image = test_image(20, 24, 9, 3);
  for (const char* kind : {"none", "resize"}) {
    const Augment augment(config_of(kind, std::string(kind) == "resize" ? 13 : 0), false, 3, 20, 24, {.4, .5, .6}, {.2});
    const Cut cut = augment.cut(0, 0, 20, 24);
    const std::vector<float> f32 = run(augment, image, cut);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const std::int64_t channels : {3, 4, 8}) {
        const std::vector<float> out = run(augment, image, cut, channels, dtype);
        ASSERT_EQ(out.size(), f32.size() / 3 * static_cast<std::size_t>(channels));
        for (std::size_t i = 0; i < out.size(); ++i) {
          const std::size_t pixel = i / static_cast<std::size_t>(channels), c = i % static_cast<std::size_t>(channels);
          const float full = c < 3 ? f32[pixel * 3 + c] : 0;
          ASSERT_EQ(out[i], dtype == DType::f16 ? static_cast<float>(f16(full)) : dtype == DType::bf16 ? static_cast<float>(bf16(full)) : full);
        }
      }
  }
}

TEST(Augment, ABatchIsItsImagesOneByOneAndNothingBehindItIsTouched) {
  Device device;
  const std::vector<TestImage> images = {test_image(30, 40, 1, 4), test_image(50, 20, 2, 7), test_image(25, 25, 3, 1)};
  AugmentConfig config = config_of("random_resized_crop", 24);
  config.flip = true;
  const Augment augment(config, true, 3, 0, 0, {.5}, {.25});
  std::vector<std::uint8_t> bytes;
  std::vector<Cut> cuts;
  for (const TestImage& image : images) {
    cuts.push_back(augment.cut(4, static_cast<std::int64_t>(cuts.size()), image.height, image.width));
    cuts.back().offset = static_cast<std::int64_t>(bytes.size()), cuts.back().label = image.label;
    bytes.insert(bytes.end(), image.pixels.begin(), image.pixels.end());
  }
  const Shape shape{4, 24, 24, 3};
  const Allocation pixels = device.allocate(bytes.size()), cut_memory = device.allocate(cuts.size() * sizeof(Cut));
  const Allocation out = device.allocate(static_cast<std::size_t>(shape.size()) * 4), labels = device.allocate(16);
  device.copy_to_device(pixels.data(), bytes.data(), bytes.size());
  device.copy_to_device(cut_memory.data(), cuts.data(), cuts.size() * sizeof(Cut));
  const auto enqueue = [&](std::int64_t count) {
    augment.enqueue(device, static_cast<const std::uint8_t*>(pixels.data()), static_cast<const Cut*>(cut_memory.data()), count, {out.data(), shape, DType::f32},
                    {labels.data(), vector_shape(4), DType::i32}, {});
  };
  enqueue(0);
  enqueue(3);
  std::vector<float> got(static_cast<std::size_t>(shape.size()));
  std::vector<std::int32_t> got_labels(4);
  device.copy_to_host(got.data(), out.data(), got.size() * 4);
  device.copy_to_host(got_labels.data(), labels.data(), 16);
  EXPECT_EQ(got_labels, (std::vector<std::int32_t>{4, 7, 1, 0}));
  std::vector<float> want;
  for (std::size_t i = 0; i < 3; ++i) {
    Cut alone = cuts[i];
    alone.offset = 0;
    const std::vector<float> one = run(augment, images[i], alone);
    want.insert(want.end(), one.begin(), one.end());
  }
  want.resize(got.size(), 0);
  EXPECT_EQ(got, want);
}

TEST(Augment, CropsAndFlipsFollowFromSeedEpochAndSampleAlone) {
  AugmentConfig config = config_of("pad_crop");
  config.flip = true;
  const Augment a(config, true, 3, 32, 32, {0}, {1}), b(config, true, 3, 32, 32, {0}, {1}), other(config, true, 4, 32, 32, {0}, {1});
  int same_epoch = 0, same_seed = 0;
  const auto place = [](const Cut& c) { return std::tuple(c.top, c.left, c.flip); };
  for (int sample = 999; sample >= 0; --sample) {
    EXPECT_EQ(place(a.cut(1, sample, 32, 32)), place(b.cut(1, sample, 32, 32)));
    same_epoch += place(a.cut(1, sample, 32, 32)) == place(a.cut(2, sample, 32, 32));
    same_seed += place(a.cut(1, sample, 32, 32)) == place(other.cut(1, sample, 32, 32));
  }
  EXPECT_LT(same_epoch, 25);   // by chance 1000 / 162
  EXPECT_LT(same_seed, 25);
  const Augment evaluation(config, false, 3, 32, 32, {0}, {1});
  for (int sample = 0; sample < 20; ++sample) EXPECT_EQ(evaluation.cut(0, sample, 32, 32).flip, 0);
}

TEST(Augment, WhatDoesNotFitIsSaidWithAdvice) {
  const auto message = [](const AugmentConfig& config, bool is_training, std::int64_t height, std::int64_t width, std::vector<double> mean = {0}) -> std::string {
    try {
      Augment(config, is_training, 1, height, width, mean, {1});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), exit_bad_input);
      return error.what();
    }
    return "";
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(message(config_of("none"), true, 0, 0), "random_resized_crop"));
  EXPECT_TRUE(has(message(config_of("none"), false, 0, 0), "augment.eval"));
  EXPECT_TRUE(has(message(config_of("resize"), true, 0, 0), "augment.size = 0"));
  EXPECT_TRUE(has(message(config_of("none", 16), true, 32, 32), "\"resize\""));
  EXPECT_TRUE(has(message(config_of("pad_crop", 48), true, 32, 32), "augment.pad"));
  EXPECT_TRUE(has(message(config_of("center_crop", 48), false, 32, 40), "augment.eval_short"));
  AugmentConfig config = config_of("center_crop", 48);
  config.eval_short = 40;
  EXPECT_TRUE(has(message(config, false, 0, 0), "augment.eval_short"));
  config.eval_short = 48;
  EXPECT_EQ(message(config, false, 0, 0), "");
  config = config_of("random_resized_crop", 8);
  config.scale_min = 0.9, config.scale_max = 0.5;
  EXPECT_TRUE(has(message(config, true, 32, 32), "augment.scale_min"));
  EXPECT_TRUE(has(message(config_of("none"), true, 32, 32, {.1, .2}), "data.mean"));
  EXPECT_EQ(message(config_of("none"), true, 32, 40), "");
}

}  // namespace
}  // namespace lockstep
