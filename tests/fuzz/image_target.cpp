// image_target: image files of every kind that convert and predict take; libvips decodes them, sizes, colours, resize and rotation are ours.
#include <filesystem>
#include <functional>

#include "fuzz/target.hpp"
#include "images/codec.hpp"
#include "support/python.hpp"

namespace lockstep::fuzz {
namespace {

namespace fs = std::filesystem;

/// Made by PIL; none in a build without libvips, whose codec refuses everything.
std::vector<std::string> seeds() {
  try {
    start_codec();
  } catch (const Error&) {
    return {""};
  }
  const ScratchFolder folder;
  run_python(read_file((fs::path(__FILE__).parent_path().parent_path() / "images/codec_files.py").string()), {"seeds", folder.path()});
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) files.push_back(entry.path().string());
  std::ranges::sort(files);
  std::vector<std::string> bytes;
  for (const std::string& file : files) bytes.push_back(read_file(file));
  return bytes;
}

/// How a mutant is to be decoded: a function of its bytes, so that a replay does the same.
DecodeOptions options_of(const std::string& bytes) {
  const std::size_t bits = std::hash<std::string>()(bytes);
  return {.fit = static_cast<Fit>(bits % 4), .size = std::int64_t{1} << (bits >> 2) % 7, .rotate = (bits >> 8) % 2 == 0, .max_aspect = (bits >> 9) % 2 == 0 ? 8. : 100.};
}

}  // namespace

Target image_target() {
  return {.name = "image",
          .seeds = seeds(),
          .words = {"\xff\xd8", "\xff\xc0", "\xff\xc2", "\xff\xc4", "\xff\xda", "\xff\xdd", "\xff\xd9", "Adobe", "Exif", "IHDR", "IDAT", "PLTE", "tRNS", "acTL", "iCCP", "RIFF", "WEBP", "VP8 ", "VP8L", "VP8X", "ANMF", "II*", "MM", "GIF89a", "BM", "P6\n", "65535"},
          .read = [](const std::string& bytes) {
            const std::string path = scratch("picture.jpg");
            put(path, bytes);
            const DecodeOptions options = options_of(bytes);
            const DecodedImage image = decode_image(path, options);
            if (image.height < 1 || image.width < 1 || std::cmp_not_equal(image.pixels.size(), 3 * image.height * image.width)) throw Fault{"pixels and size differ"};
            if (!bytes.starts_with("P") && decoded_size(path, options) != std::pair(image.height, image.width))   // libvips reads a damaged PNM header from memory otherwise than from a file
              throw Fault{"the size that the header gives is another"};
            if (options.fit == Fit::short_side ? std::min(image.height, image.width) != options.size : image.height != options.size || image.width != options.size) throw Fault{"the size is not the asked one"};
          },
          .names = {"picture.jpg"},
          .bytes_constant = 16 << 20,                                 // 64 x 64 pixels of an aspect of 100, and a decoder's tables
          .bytes_a_byte = 64,
          .most_bytes = 1 << 14,
          .library = ".so"};
}

}  // namespace lockstep::fuzz
