// resize: antialiased bilinear on RGB u8, bit for bit what PIL's Image.resize(size, BILINEAR) gives.
// Ours and not libvips' because models are compared with torchvision's, and vips_resize differs from PIL by up to two gray levels (mean of
// an image: box before triangle when shrinking) and more when enlarging.  It is also faster.
#pragma once
#include <cstdint>
#include <vector>

namespace lockstep {

/// For each output position: the first input position and its weights from there on, in fixed point; `taps` slots each.
struct ResizeWeights {
  int taps = 0;
  std::vector<std::int32_t> first, count, values;
};

/// Takes the rows of one picture from the top down, as a decoder gives them; keeps them at the new width.
class Resize {
 public:
  /// height, width: of the rows to come.  A decoder that shrinks rounds extents up: then the picture covers only a part of the last row and
  /// column, covered_height and covered_width.  All extents at least 1.
  Resize(std::int64_t height, std::int64_t width, double covered_height, double covered_width, std::int64_t to_height, std::int64_t to_width);
  void add_row(const std::uint8_t* rgb);            // [width, 3]
  std::vector<std::uint8_t> result();               // [to_height, to_width, 3]; after the last row

 private:
  std::int64_t width_, to_height_, to_width_;
  bool keeps_width_, keeps_height_;
  ResizeWeights columns_, lines_;
  std::vector<std::uint8_t> narrow_;                // [rows so far, to_width, 3]
};

}  // namespace lockstep
