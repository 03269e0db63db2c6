// codec: one image file -> RGB u8 at the asked fit and size (libvips).  Used by convert and predict.
// The only file that sees libvips is codec.cpp; with LOCKSTEP_IMAGES=OFF codec_none.cpp explains that in every call.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace lockstep {

enum class Fit { cover, short_side, stretch, pad };
inline constexpr const char* fit_names[] = {"cover", "short", "stretch", "pad"};   // in files and options

inline const char* name_of(Fit fit) { return fit_names[static_cast<int>(fit)]; }
inline Fit fit_of(const std::string& name) {
  for (const Fit fit : {Fit::cover, Fit::short_side, Fit::stretch, Fit::pad})
    if (name == name_of(fit)) return fit;
  fail("fit \"", name, "\" is none of cover, short, stretch, pad");
}

struct DecodeOptions {
  Fit fit = Fit::cover;
  std::int64_t size = 256;
  bool rotate = true;                                  // apply EXIF orientation
  double max_aspect = 8;                               // Fit::short_side refuses longer images
};

struct DecodedImage {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> pixels;                    // [height, width, 3]
};

/// Starts libvips (one thread an image; callers bring the threads).  Once, before threads start.
void start_codec();
/// Gray, CMYK, palette, alpha, 16-bit and progressive files become RGB.  Error with the file's name when it is broken, truncated or empty.
/// Resize: antialiased bilinear, within 1 gray level (mean) of PIL's.
DecodedImage decode_image(const std::string& path, const DecodeOptions& options);
/// [height, width] as decode_image would give, from the file's header alone.
std::pair<std::int64_t, std::int64_t> decoded_size(const std::string& path, const DecodeOptions& options);

}  // namespace lockstep
