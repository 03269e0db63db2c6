// crops: boxes against torchvision's, as distributions where chance decides and one by one where it does not.
#include "data/crops.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>

#include "base/error.hpp"
#include "support/data_sets.hpp"
#include "support/python.hpp"

namespace lockstep {
namespace {

/// Largest distance between two empirical distributions (Kolmogorov and Smirnov).
double ks_distance(std::vector<double> a, std::vector<double> b) {
  std::ranges::sort(a), std::ranges::sort(b);
  double largest = 0;
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const double x = std::min(a[i], b[k]);
    while (i < a.size() && a[i] <= x) ++i;
    while (k < b.size() && b[k] <= x) ++k;
    largest = std::max(largest, std::abs(static_cast<double>(i) / static_cast<double>(a.size()) - static_cast<double>(k) / static_cast<double>(b.size())));
  }
  return largest;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double n = static_cast<double>(a.size());
  double ma = 0, mb = 0, ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) ma += a[i] / n, mb += b[i] / n;
  for (std::size_t i = 0; i < a.size(); ++i) ab += (a[i] - ma) * (b[i] - mb), aa += (a[i] - ma) * (a[i] - ma), bb += (b[i] - mb) * (b[i] - mb);
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

// 10000 draws each: two samples of one distribution differ by more than 1.95 * sqrt(2 / 10000) = 0.0276 once in a thousand times (Smirnov);
// both seeds are fixed, so this does not come and go.  Sizes: usual, CIFAR, so flat that ten tries succeed
// about every second time, too flat and too tall for any (the fallback), tiny.
TEST(RandomResizedCrop, IsDistributedAsTorchvisionsInAreaAspectAndPlace) {
  if (!python_has("torchvision")) GTEST_SKIP() << "no python3-torchvision";
  const ScratchFolder folder;
  constexpr int draws = 10000;
  const std::string script = R"(
import sys, torch, numpy
from torchvision.transforms import RandomResizedCrop
for line in sys.argv[2].splitlines():
    name, height, width, low, high, aspect, draws = line.split()
    torch.manual_seed(1)
    image, scale, ratio = torch.zeros(3, int(height), int(width)), [float(low), float(high)], [1 / float(aspect), float(aspect)]
    boxes = [RandomResizedCrop.get_params(image, scale, ratio) for _ in range(int(draws))]   # top, left, height, width
    numpy.array(boxes, dtype=numpy.float64).tofile(sys.argv[1] + "/" + name)
)";
  struct Case { std::int64_t height, width; double low, high, aspect; };
  const std::vector<Case> cases = {{375, 500, 0.08, 1, 4.0 / 3}, {32, 32, 0.08, 1, 4.0 / 3}, {100, 200, 0.5, 1, 4.0 / 3},
                                   {20, 200, 0.3, 1, 4.0 / 3}, {300, 60, 0.5, 1, 2}, {3, 2, 0.08, 1, 4.0 / 3}};
  const auto name_of_case = [](const Case& c) { return text_of(c.height, "x", c.width); };
  std::string lines;
  for (const Case& c : cases) lines += text_of(name_of_case(c), " ", c.height, " ", c.width, " ", c.low, " ", c.high, " ", c.aspect, " ", draws, "\n");
  run_python(script, {folder.path(), lines});
  for (const Case& c : cases) {
    SCOPED_TRACE(name_of_case(c));
    const std::vector<double> torch = numbers_in<double>(folder / name_of_case(c));
    ASSERT_EQ(torch.size(), 4u * draws);
    AugmentConfig config;
    config.scale_min = c.low, config.scale_max = c.high, config.aspect_max = c.aspect;
    std::vector<Box> ours, theirs;
    for (int i = 0; i < draws; ++i) {
      ours.push_back(random_resized_crop({7, i / 1000, i}, {c.height, c.width}, config));
      const double* t = torch.data() + 4 * i;
      theirs.push_back({t[0], t[1], t[2], t[3]});
    }
    const std::map<std::string, std::function<double(const Box&)>> quantities = {
        {"area", [](const Box& b) { return b.height * b.width; }},
        {"aspect", [](const Box& b) { return b.width / b.height; }},
        {"top", [](const Box& b) { return b.top; }},
        {"left", [](const Box& b) { return b.left; }},
        {"bottom margin", [&](const Box& b) { return static_cast<double>(c.height) - b.top - b.height; }},
        {"right margin", [&](const Box& b) { return static_cast<double>(c.width) - b.left - b.width; }},
        {"height", [](const Box& b) { return b.height; }},
        {"width", [](const Box& b) { return b.width; }}};
    std::map<std::string, std::vector<double>> of_ours, of_theirs;
    for (const auto& [name, quantity] : quantities) {
      for (const Box& b : ours) of_ours[name].push_back(quantity(b));
      for (const Box& b : theirs) of_theirs[name].push_back(quantity(b));
      EXPECT_LT(ks_distance(of_ours[name], of_theirs[name]), 0.0276) << name;
    }
    // Together too: a correlation of 10000 pairs is known to 1 / sqrt(10000), the difference of two to 0.014.
    for (const auto& [a, b] : {std::pair{"area", "aspect"}, {"area", "top"}, {"top", "left"}, {"height", "left"}})
      EXPECT_NEAR(correlation(of_ours[a], of_ours[b]), correlation(of_theirs[a], of_theirs[b]), 0.056) << a << ", " << b;
  }
}

TEST(RandomResizedCrop, StaysInsideAndIsTheSameEachTimeItIsAsked) {
  const AugmentConfig config;
  for (int sample = 0; sample < 2000; ++sample) {
    const ImageSize image{1 + sample % 97, 1 + sample % 61};
    const Box b = random_resized_crop({1, 2, sample}, image, config), again = random_resized_crop({1, 2, sample}, image, config);
    ASSERT_GE(b.top, 0);
    ASSERT_GE(b.left, 0);
    ASSERT_GE(b.height, 1);
    ASSERT_GE(b.width, 1);
    ASSERT_LE(b.top + b.height, static_cast<double>(image.height));
    ASSERT_LE(b.left + b.width, static_cast<double>(image.width));
    ASSERT_EQ(std::tuple(b.top, b.left, b.height, b.width), std::tuple(again.top, again.left, again.height, again.width));
  }
}

// 81 places, 81000 draws: chi-squared of 80 degrees of freedom has standard deviation 12.6.
TEST(PadCrop, TakesEveryPlaceOfThePaddedImageAlike) {
  std::map<std::pair<double, double>, int> seen;
  for (int i = 0; i < 81000; ++i) {
    const Box b = pad_crop({3, 1, i}, {32, 32}, {32, 32}, 4);
    ASSERT_EQ(std::pair(b.height, b.width), std::pair(32.0, 32.0));
    ++seen[{b.top, b.left}];
  }
  EXPECT_EQ(seen.size(), 81u);
  EXPECT_EQ(seen.begin()->first, std::pair(-4.0, -4.0));
  EXPECT_EQ(seen.rbegin()->first, std::pair(4.0, 4.0));
  double chi_squared = 0;
  for (const auto& [place, count] : seen) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000;
  EXPECT_NEAR(chi_squared, 80, 4 * 12.6);
  const Box larger = pad_crop({3, 1, 0}, {40, 24}, {32, 24}, 0);   // torchvision's RandomCrop without padding
  EXPECT_GE(larger.top, 0);
  EXPECT_LE(larger.top, 8);
  EXPECT_EQ(larger.left, 0);
  EXPECT_THROW(pad_crop({3, 1, 0}, {20, 20}, {32, 32}, 4), Error);
}

TEST(CenterCrop, IsTorchvisionsResizeAndCenterCropForEverySize) {
  if (!python_has("torchvision")) GTEST_SKIP() << "no python3-torchvision";
  const std::string script = R"(
from torchvision.transforms import functional
crop = []
functional.crop = lambda image, top, left, height, width: crop.append((top, left))
class Image: pass
def get_dimensions(image): return [3, image.height, image.width]
functional.get_dimensions = get_dimensions
for height in list(range(31, 60)) + [375, 500, 333]:
    for width in list(range(31, 60)) + [500, 375, 1024]:
        for short, size in ((0, 31), (0, 30), (256, 224), (37, 32), (40, 40)):
            image = Image()
            image.height, image.width = functional._compute_resized_output_size((height, width), [short]) if short else (height, width)
            crop.clear()
            functional.center_crop(image, size)
            print(height, width, short, size, image.height, image.width, *crop[0])
)";
  std::istringstream lines(run_python(script));
  int compared = 0;
  for (std::int64_t height, width, short_side, size, resized_height, resized_width, top, left;
       lines >> height >> width >> short_side >> size >> resized_height >> resized_width >> top >> left; ++compared) {
    const Box b = center_crop({height, width}, {size, size}, short_side);
    const double row = static_cast<double>(height) / static_cast<double>(resized_height), column = static_cast<double>(width) / static_cast<double>(resized_width);
    ASSERT_DOUBLE_EQ(b.top, static_cast<double>(top) * row) << height << "x" << width << " " << short_side << " " << size;
    ASSERT_DOUBLE_EQ(b.left, static_cast<double>(left) * column) << height << "x" << width << " " << short_side << " " << size;
    ASSERT_DOUBLE_EQ(b.height, static_cast<double>(size) * row);
    ASSERT_DOUBLE_EQ(b.width, static_cast<double>(size) * column);
  }
  EXPECT_EQ(compared, 32 * 32 * 5);
  EXPECT_THROW(center_crop({20, 40}, {32, 32}, 0), Error);
  EXPECT_THROW(center_crop({20, 40}, {32, 32}, 31), Error);
}

// 100000 draws of probability 1/2: standard deviation 158.
TEST(Flip, HalfOfAllDrawsIndependentOfTheCropAndOfTheOtherEpoch) {
  int flipped = 0, both = 0, with_high_crop = 0;
  for (int i = 0; i < 100000; ++i) {
    const bool is = is_flipped({1, 0, i});
    flipped += is;
    both += is && is_flipped({1, 1, i});
    with_high_crop += is && pad_crop({1, 0, i}, {32, 32}, {32, 32}, 4).top < 0;   // 4 of 9 places
  }
  EXPECT_NEAR(flipped, 50000, 4 * 158);
  EXPECT_NEAR(both, 25000, 4 * 137);
  EXPECT_NEAR(with_high_crop, 100000 * 2.0 / 9, 4 * 132);
}

}  // namespace
}  // namespace lockstep
