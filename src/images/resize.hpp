// resize: antialiased bilinear on RGB u8, bit for bit what PIL's Image.resize(size, BILINEAR) gives.
// Ours and not libvips' because models are compared with torchvision's, and vips_resize differs from PIL by up to a gray level
// (box before triangle when shrinking, no antialias when enlarging).  Plain C++.
#pragma once
#include <cstdint>
#include <vector>

namespace lockstep {

/// from: [height, width, 3].  Result: [to_height, to_width, 3].  All extents at least 1.
std::vector<std::uint8_t> resize_bilinear(const std::uint8_t* from, std::int64_t height, std::int64_t width, std::int64_t to_height,
                                          std::int64_t to_width);

}  // namespace lockstep
