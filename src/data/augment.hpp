// augment: from stored u8 images to what the network sees.
// Draws crops and flips on the host, a pure function of (seed, epoch, sample); cuts, resizes (antialiased bilinear), flips, normalizes and
// casts in one kernel body for GPU and CPU.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "tensor/device.hpp"
#include "tensor/tensor.hpp"

namespace lockstep {

/// What one image of a batch needs; plain data, copied to the device beside the pixels.
struct Cut {
  std::int64_t offset = 0;               // of the image in the slot's byte arena
  std::int32_t height = 0, width = 0;    // stored
  float top = 0, left = 0;               // of the box that becomes the output, in stored pixels; may lie outside (pad_crop)
  float box_height = 0, box_width = 0;
  std::int32_t clip_top = 0, clip_left = 0, clip_bottom = 0, clip_right = 0;  // the filter reads only here (PIL resizes what it has cropped)
  std::int32_t flip = 0;
  std::int32_t label = 0;
};

class Augment {
 public:
  /// is_training chooses config.train or config.eval.  mean and std: one or three fractions of 255, as resolved by the trainer.
  /// Error when the stored size does not fit (own-size images need a crop or a resize; size above what is stored for center_crop; ...).
  Augment(const AugmentConfig& config, bool is_training, std::uint64_t seed, std::int64_t stored_height, std::int64_t stored_width,
          const std::vector<double>& mean, const std::vector<double>& std);
  std::int64_t output_height() const { return output_height_; }
  std::int64_t output_width() const { return output_width_; }
  /// Host.  torchvision's RandomCrop(padding), RandomResizedCrop (10 tries, then its fallback) and CenterCrop rules.
  Cut cut(std::int64_t epoch, std::int64_t sample, std::int64_t height, std::int64_t width) const;
  /// Device.  pixels u8 [bytes]; cuts [count]; out [>= count, height, width, form.channels] of f32 | f16 | bf16, extra channels zero;
  /// labels i32 [>= count].  What lies behind count stays as it is.  Resizing is Pillow's antialiased bilinear without its rounding between
  /// the two passes; a box of the output's size is copied exactly.  space_to_depth is not offered.
  void enqueue(Device& device, const std::uint8_t* pixels, const Cut* cuts, std::int64_t count, Tensor out, Tensor labels, const InputForm& form) const;

 private:
  AugmentConfig config_;
  std::string kind_;
  bool is_training_;
  std::uint64_t seed_;
  std::int64_t output_height_ = 0, output_width_ = 0;
  std::array<float, 3> scale_{}, shift_{}, fill_{};   // out = pixel * scale + shift; fill: the padding's normalized value
};

}  // namespace lockstep
