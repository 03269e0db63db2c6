// crops: which part of an image is cut out, by torchvision's rules.
// In: the image's size, and (seed, epoch, sample) where chance decides.  Out: a box in stored pixels.  Pure, host only.
#pragma once
#include <cstdint>

#include "base/config.hpp"

namespace lockstep {

struct ImageSize {
  std::int64_t height = 0, width = 0;
};
struct Box {
  double top = 0, left = 0, height = 0, width = 0;
};
/// What a random crop is drawn for.
struct Draw {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0, sample = 0;
};

/// RandomCrop(size, padding = pad): each place in the padded image alike.  The box may leave the image by up to pad.
/// Error if the padded image is smaller than size.
Box pad_crop(const Draw& draw, ImageSize image, ImageSize size, std::int64_t pad);
/// RandomResizedCrop.get_params: ten tries of an area (uniform) and an aspect (log-uniform) that fit in, else the whole image or what is
/// nearest to its aspect, from the center.  Sides are whole pixels.
Box random_resized_crop(const Draw& draw, ImageSize image, const AugmentConfig& config);
/// CenterCrop(size); with resize_short > 0 as if Resize(resize_short) came before: the box of the original that becomes the crop.
/// Error if the (resized) image is smaller than size.
Box center_crop(ImageSize image, ImageSize size, std::int64_t resize_short);
/// True for half of all draws; independent of the crops.
bool is_flipped(const Draw& draw);

}  // namespace lockstep
