// augment: the crops of a batch, and the kernel that turns stored bytes into the network's input.
#include "data/augment.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "data/crops.hpp"
#include "tensor/views.hpp"

namespace lockstep {
namespace {

struct Colour {                 // a channel: out = pixel * scale + shift; fill stands where a crop leaves the image
  float scale[3], shift[3], fill[3];
};

/// The source positions that make one output position, and their weights, which sum to 1: a triangle as wide as an output pixel is in the
/// source, at least one pixel to each side, cut off at [clip_begin, clip_end).  Pillow's rule (Resample.c, precompute_coeffs, BILINEAR).
struct Taps {
  std::int32_t begin, end;
  float center, slope, norm = 1;
  KOKKOS_INLINE_FUNCTION Taps(float box_begin, float box_extent, std::int64_t outputs, std::int64_t output, std::int32_t clip_begin, std::int32_t clip_end) {
    const float scale = box_extent / static_cast<float>(outputs), support = scale > 1 ? scale : 1;
    center = box_begin + (static_cast<float>(output) + 0.5f) * scale;
    slope = 1 / support;
    begin = Kokkos::max(static_cast<std::int32_t>(center - support + 0.5f), clip_begin);
    end = Kokkos::min(static_cast<std::int32_t>(center + support + 0.5f), clip_end);
    float sum = 0;
    for (std::int32_t i = begin; i < end; ++i) sum += weight(i);
    if (sum > 0) norm = 1 / sum;
  }
  KOKKOS_INLINE_FUNCTION float weight(std::int32_t i) const {
    const float w = 1 - Kokkos::abs(static_cast<float>(i) + 0.5f - center) * slope;
    return w > 0 ? w * norm : 0;
  }
};

/// One work item: a row of an image on a CPU, a pixel on a GPU.
template <class T>
struct CutImages {
  const std::uint8_t* pixels;   // [bytes]
  const Cut* cuts;              // [n]
  T* out;                       // [n, height, width, channels]
  std::int32_t* labels;         // [n]
  std::int64_t height, width, channels;
  Colour colour;

  enum : std::int32_t { line_columns = 2048 };   // wider sources go pixel by pixel

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t row = runs_on_host ? item : item / width, n = row / height, y = row % height;
    const Cut& cut = cuts[n];
    if constexpr (runs_on_host) {
      if (y == 0) labels[n] = cut.label;
      if (is_copy(cut)) for (std::int64_t x = 0; x < width; ++x) copy(cut, n, y, x);
      else if (cut.clip_right - cut.clip_left <= line_columns) resize_row(cut, n, y);
      else for (std::int64_t x = 0; x < width; ++x) resize(cut, n, y, x);
    } else {
      const std::int64_t x = item % width;
      if (y == 0 && x == 0) labels[n] = cut.label;
      if (is_copy(cut)) copy(cut, n, y, x);
      else resize(cut, n, y, x);
    }
  }

  KOKKOS_FUNCTION bool is_copy(const Cut& cut) const {
    return cut.box_height == static_cast<float>(height) && cut.box_width == static_cast<float>(width) &&
           cut.top == Kokkos::floor(cut.top) && cut.left == Kokkos::floor(cut.left);
  }
  KOKKOS_FUNCTION std::int64_t mirrored(const Cut& cut, std::int64_t x) const { return cut.flip ? width - 1 - x : x; }
  KOKKOS_FUNCTION T* place(std::int64_t n, std::int64_t y, std::int64_t x) const {
    T* to = out + ((n * height + y) * width + x) * channels;
    for (std::int64_t c = 3; c < channels; ++c) to[c] = T(0.f);
    return to;
  }

  KOKKOS_FUNCTION void copy(const Cut& cut, std::int64_t n, std::int64_t y, std::int64_t x) const {
    const std::int64_t row = static_cast<std::int64_t>(cut.top) + y, column = static_cast<std::int64_t>(cut.left) + mirrored(cut, x);
    const bool is_inside = row >= cut.clip_top && row < cut.clip_bottom && column >= cut.clip_left && column < cut.clip_right;
    const std::uint8_t* from = pixels + cut.offset + (row * cut.width + column) * 3;
    T* to = place(n, y, x);
    for (int c = 0; c < 3; ++c) to[c] = T(is_inside ? static_cast<float>(from[c]) * colour.scale[c] + colour.shift[c] : colour.fill[c]);
  }

  KOKKOS_FUNCTION void resize(const Cut& cut, std::int64_t n, std::int64_t y, std::int64_t x) const {
    const Taps rows(cut.top, cut.box_height, height, y, cut.clip_top, cut.clip_bottom);
    const Taps columns(cut.left, cut.box_width, width, mirrored(cut, x), cut.clip_left, cut.clip_right);
    float sum[3] = {0, 0, 0};
    for (std::int32_t row = rows.begin; row < rows.end; ++row) {
      const std::uint8_t* from = pixels + cut.offset + (static_cast<std::int64_t>(row) * cut.width + columns.begin) * 3;
      const float row_weight = rows.weight(row);
      for (std::int32_t column = columns.begin; column < columns.end; ++column, from += 3) {
        const float weight = row_weight * columns.weight(column);
        for (int c = 0; c < 3; ++c) sum[c] += weight * static_cast<float>(from[c]);
      }
    }
    T* to = place(n, y, x);
    for (int c = 0; c < 3; ++c) to[c] = T(sum[c] * colour.scale[c] + colour.shift[c]);
  }

  /// The same, a row at once: first all source rows into one line, then along the line.
  KOKKOS_FUNCTION void resize_row(const Cut& cut, std::int64_t n, std::int64_t y) const {
    float line[line_columns * 3];
    const std::int32_t begin = Taps(cut.left, cut.box_width, width, 0, cut.clip_left, cut.clip_right).begin;
    const std::int32_t end = Taps(cut.left, cut.box_width, width, width - 1, cut.clip_left, cut.clip_right).end;
    const Taps rows(cut.top, cut.box_height, height, y, cut.clip_top, cut.clip_bottom);
    for (std::int32_t row = rows.begin; row < rows.end; ++row) {
      const std::uint8_t* from = pixels + cut.offset + (static_cast<std::int64_t>(row) * cut.width + begin) * 3;
      const float weight = rows.weight(row);
      if (row == rows.begin) for (std::int32_t i = 0; i < (end - begin) * 3; ++i) line[i] = weight * static_cast<float>(from[i]);
      else for (std::int32_t i = 0; i < (end - begin) * 3; ++i) line[i] += weight * static_cast<float>(from[i]);
    }
    for (std::int64_t x = 0; x < width; ++x) {
      const Taps columns(cut.left, cut.box_width, width, mirrored(cut, x), cut.clip_left, cut.clip_right);
      float sum[3] = {0, 0, 0};
      for (std::int32_t column = columns.begin; column < columns.end; ++column) {
        const float weight = columns.weight(column), *from = line + (column - begin) * 3;
        for (int c = 0; c < 3; ++c) sum[c] += weight * from[c];
      }
      T* to = place(n, y, x);
      for (int c = 0; c < 3; ++c) to[c] = T(sum[c] * colour.scale[c] + colour.shift[c]);
    }
  }
};

template <class T>
void cut_images(Device& device, const std::uint8_t* pixels, const Cut* cuts, std::int64_t count, Tensor out, Tensor labels, const Colour& colour) {
  const std::int64_t h = out.shape.h, w = out.shape.w, c = out.shape.c;
  const CutImages<T> kernel{pixels, cuts, out.as<T>(), labels.as<std::int32_t>(), h, w, c, colour};
  Kokkos::parallel_for("augment.cut", range(device, runs_on_host ? count * h : count * h * w), kernel);
}

/// One value for all channels, or one each.
double channel(const std::vector<double>& values, int c, const char* key) {
  require(values.size() == 1 || values.size() == 3, key, " has ", values.size(), " values. Images have three channels: give one value or three.");
  return values[values.size() == 1 ? 0 : static_cast<std::size_t>(c)];
}

}  // namespace

Augment::Augment(const AugmentConfig& config, bool is_training, std::uint64_t seed, std::int64_t stored_height, std::int64_t stored_width,
                 const std::vector<double>& mean, const std::vector<double>& std)
    : config_(config), kind_(is_training ? config.train : config.eval), is_training_(is_training), seed_(seed) {
  const char* key = is_training ? "augment.train" : "augment.eval";
  const bool is_own_size = stored_height == 0;
  const std::string stored = is_own_size ? "of its own size" : text_of(stored_height, "x", stored_width);
  if (is_own_size) {
    require(kind_ != "none", key, " = \"none\", but each image of this data set is ", stored, ". Set it to ",
            is_training ? "\"random_resized_crop\", \"center_crop\" or \"resize\"" : "\"center_crop\" or \"resize\"", ", and augment.size.");
    require(config.size > 0, "augment.size = 0 takes images as stored, but each image of this data set is ", stored, ". Set it to what the network shall see.");
  }
  output_height_ = config.size > 0 ? config.size : stored_height;
  output_width_ = config.size > 0 ? config.size : stored_width;
  require(kind_ != "none" || (output_height_ == stored_height && output_width_ == stored_width), key, " = \"none\" leaves images ", stored,
          ", but augment.size = ", config.size, ". Set ", key, " to \"resize\" or \"center_crop\", or augment.size to 0.");
  require(kind_ != "random_resized_crop" || config.scale_min <= config.scale_max, "augment.scale_min = ", config.scale_min, " is above augment.scale_max = ",
          config.scale_max, ".");
  // A crop that does not fit is known now if all images are of one size, and with the short side if it is given; else as images are read.
  if (!is_own_size) cut(0, 0, stored_height, stored_width);
  else if (kind_ == "center_crop" && !is_training && config.eval_short > 0) cut(0, 0, config.eval_short, config.eval_short);
  for (int c = 0; c < 3; ++c) {
    const auto i = static_cast<std::size_t>(c);
    const double m = channel(mean, c, "data.mean"), s = channel(std, c, "data.std");
    require(s > 0, "data.std = ", s, " for channel ", c, ": all images have the same value there. Set data.std.");
    scale_[i] = static_cast<float>(1 / (255 * s));
    shift_[i] = static_cast<float>(-m / s);
    fill_[i] = config.pad_fill == "mean" ? 0 : shift_[i];
  }
}

Cut Augment::cut(std::int64_t epoch, std::int64_t sample, std::int64_t height, std::int64_t width) const {
  const Draw draw{seed_, epoch, sample};
  const ImageSize image{height, width}, size{output_height_, output_width_};
  Box box{0, 0, static_cast<double>(height), static_cast<double>(width)};
  if (kind_ == "pad_crop") box = pad_crop(draw, image, size, config_.pad);
  else if (kind_ == "random_resized_crop") box = random_resized_crop(draw, image, config_);
  else if (kind_ == "center_crop") box = center_crop(image, size, is_training_ ? 0 : config_.eval_short);

  Cut cut;
  cut.height = static_cast<std::int32_t>(height), cut.width = static_cast<std::int32_t>(width);
  cut.top = static_cast<float>(box.top), cut.left = static_cast<float>(box.left);
  cut.box_height = static_cast<float>(box.height), cut.box_width = static_cast<float>(box.width);
  cut.clip_bottom = cut.height, cut.clip_right = cut.width;
  if (kind_ == "random_resized_crop") {   // cropped first, then resized: the filter sees nothing outside of the crop
    cut.clip_top = static_cast<std::int32_t>(box.top), cut.clip_left = static_cast<std::int32_t>(box.left);
    cut.clip_bottom = cut.clip_top + static_cast<std::int32_t>(box.height), cut.clip_right = cut.clip_left + static_cast<std::int32_t>(box.width);
  }
  cut.flip = is_training_ && config_.flip && is_flipped(draw) ? 1 : 0;
  return cut;
}

void Augment::enqueue(Device& device, const std::uint8_t* pixels, const Cut* cuts, std::int64_t count, Tensor out, Tensor labels,
                      const InputForm& form) const {
  if (form.space_to_depth || form.channels < 3) fail_with(exit_internal, "augment writes rows of pixels with three or more channels");
  const Shape image = {out.shape.n, output_height_, output_width_, form.channels};
  if (out.shape != image || out.shape.n < count || labels.size() < count || labels.dtype != DType::i32)
    fail_with(exit_internal, "augment: the input is ", text(out.shape), ", labels ", text(labels.shape), " for ", count, " images of ", output_height_, "x",
              output_width_, "x", form.channels);
  if (count == 0) return;
  Colour colour;
  for (int c = 0; c < 3; ++c) {
    const auto i = static_cast<std::size_t>(c);
    colour.scale[c] = scale_[i], colour.shift[c] = shift_[i], colour.fill[c] = fill_[i];
  }
  dispatch(out.dtype, [&]<class T>(T) { cut_images<T>(device, pixels, cuts, count, out, labels, colour); });
}

}  // namespace lockstep
