// The twin of codec.cpp in a build with LOCKSTEP_IMAGES=OFF: no libvips; files are refused.
#include "images/codec.hpp"

namespace lockstep {
namespace {
[[noreturn]] void refuse() {
  fail("this build reads no image files (LOCKSTEP_IMAGES=OFF). Install libvips-dev and build with -DLOCKSTEP_IMAGES=ON; "
       "shards that were made elsewhere work here too");
}
}  // namespace

void start_codec() { refuse(); }
DecodedImage decode_image(const std::string&, const DecodeOptions&) { refuse(); }
std::pair<std::int64_t, std::int64_t> decoded_size(const std::string&, const DecodeOptions&) { refuse(); }

}  // namespace lockstep
