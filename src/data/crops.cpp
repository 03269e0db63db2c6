// crops: torchvision's transforms (0.14, transforms/transforms.py), drawn from counter-based bits.
#include "data/crops.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/random.hpp"

namespace lockstep {
namespace {

constexpr std::uint32_t attempts = 10, flip_draw = 16;   // the number of a draw: 0 to 9 the tries, 16 the flip

Bits4 bits_of(const Draw& draw, std::uint32_t number) {
  return random_bits(draw.seed, Purpose::augment, static_cast<std::uint64_t>(draw.epoch), static_cast<std::uint64_t>(draw.sample), number);
}
/// 32 bits are enough for a place in an image.
double place(std::int64_t places, std::uint32_t bits) { return static_cast<double>(below(static_cast<std::uint64_t>(places), bits, 0)); }
/// Python's round(): halves go to the even neighbour.
std::int64_t rounded(double x) { return std::llrint(x); }

}  // namespace

Box pad_crop(const Draw& draw, ImageSize image, ImageSize size, std::int64_t pad) {
  const std::int64_t rows = image.height + 2 * pad - size.height, columns = image.width + 2 * pad - size.width;
  require(rows >= 0 && columns >= 0, "pad_crop: an image of ", image.height, "x", image.width, " with augment.pad = ", pad, " is smaller than the crop of ",
          size.height, "x", size.width, ". Raise augment.pad or lower augment.size.");
  const Bits4 bits = bits_of(draw, 0);
  return {place(rows + 1, bits[0]) - static_cast<double>(pad), place(columns + 1, bits[1]) - static_cast<double>(pad),
          static_cast<double>(size.height), static_cast<double>(size.width)};
}

Box random_resized_crop(const Draw& draw, ImageSize image, const AugmentConfig& config) {
  const double height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const double log_aspect = std::log(config.aspect_max);
  for (std::uint32_t attempt = 0; attempt < attempts; ++attempt) {
    const Bits4 bits = bits_of(draw, attempt);
    const double area = height * width * (config.scale_min + (config.scale_max - config.scale_min) * uniform_of(bits[0]));
    const double aspect = std::exp((2 * uniform_of(bits[1]) - 1) * log_aspect);
    const std::int64_t w = rounded(std::sqrt(area * aspect)), h = rounded(std::sqrt(area / aspect));
    if (w > 0 && w <= image.width && h > 0 && h <= image.height)
      return {place(image.height - h + 1, bits[2]), place(image.width - w + 1, bits[3]), static_cast<double>(h), static_cast<double>(w)};
  }
  std::int64_t h = image.height, w = image.width;
  if (width / height < 1 / config.aspect_max) h = rounded(width * config.aspect_max);
  else if (width / height > config.aspect_max) w = rounded(height * config.aspect_max);
  h = std::clamp<std::int64_t>(h, 1, image.height), w = std::clamp<std::int64_t>(w, 1, image.width);
  return {static_cast<double>((image.height - h) / 2), static_cast<double>((image.width - w) / 2), static_cast<double>(h), static_cast<double>(w)};
}

Box center_crop(ImageSize image, ImageSize size, std::int64_t resize_short) {
  ImageSize resized = image;
  if (resize_short > 0) {
    const auto other = [&](std::int64_t longer, std::int64_t shorter) {   // int() of Python: towards zero
      return static_cast<std::int64_t>(static_cast<double>(resize_short * longer) / static_cast<double>(shorter));
    };
    resized = image.width <= image.height ? ImageSize{other(image.height, image.width), resize_short}
                                          : ImageSize{resize_short, other(image.width, image.height)};
  }
  if (resized.height < size.height || resized.width < size.width)
    fail("center_crop: an image of ", image.height, "x", image.width,
         resize_short > 0 ? text_of(", resized to a short side of ", resize_short, ",") : std::string(), " is smaller than the crop of ", size.height,
         "x", size.width, ". Set augment.eval_short to at least that, or lower augment.size.");
  const double row = static_cast<double>(image.height) / static_cast<double>(resized.height);
  const double column = static_cast<double>(image.width) / static_cast<double>(resized.width);
  const auto margin = [](std::int64_t whole, std::int64_t part) { return static_cast<double>(rounded(static_cast<double>(whole - part) / 2)); };
  return {margin(resized.height, size.height) * row, margin(resized.width, size.width) * column,
          static_cast<double>(size.height) * row, static_cast<double>(size.width) * column};
}

bool is_flipped(const Draw& draw) { return (bits_of(draw, flip_draw)[0] >> 31) != 0; }

}  // namespace lockstep
