// resize: antialiased bilinear on RGB u8, bit for bit what PIL's Image.resize(size, BILINEAR) gives.
// Ours and not libvips' because models are compared with torchvision's, and vips_resize differs from PIL by up to two gray levels (mean of
// an image: box before triangle when shrinking) and more when enlarging (no u8 between the passes, other centres).  It is also faster.
#pragma once
#include <cstdint>
#include <vector>

namespace lockstep {

/// [height, width, 3] of pixels.  A decoder that shrinks rounds extents up: then the picture covers only part of the last row and column.
struct Picture {
  const std::uint8_t* pixels;
  std::int64_t height, width;
  double covered_height = static_cast<double>(height), covered_width = static_cast<double>(width);
};

/// Result: [height, width, 3].  All extents at least 1.
std::vector<std::uint8_t> resize_bilinear(const Picture& from, std::int64_t height, std::int64_t width);

}  // namespace lockstep
