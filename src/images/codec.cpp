// In: the bytes of one file.  Out: RGB u8.  libvips finds the format by content and decodes; what follows is ours and equals PIL:
// convert("RGB") drops alpha and ignores colour profiles, EXIF orientation, bilinear resize, crop or pad.
// A large JPEG is shrunk while it is decoded, as long as four times the wanted size remains: 0.3 gray levels from PIL on sharp photos.
#include "images/codec.hpp"

#include <vips/vips.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>

#include "images/resize.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t max_pixels = std::int64_t{1} << 28;   // 0.8 GB of RGB: a decompression bomb, not a photo
constexpr int max_side = 1 << 18;                            // a resize has weights for each column
constexpr double cut_aspect = 64;                            // longer images may not become larger than they are, only for most of it to be cut off

struct Unref { void operator()(void* object) const { g_object_unref(object); } };
using Image = std::unique_ptr<VipsImage, Unref>;
using Region = std::unique_ptr<VipsRegion, Unref>;

struct VipsFailure {};
void check(int status) { if (status != 0) throw VipsFailure(); }
Image own(VipsImage* image) { return image ? Image(image) : throw VipsFailure(); }

/// libvips has one error text for all threads.  Whoever fails decodes once more alone, so that the reason it reports is its own.
template <class F>
auto with_own_errors(const std::string& path, const F& decode) {
  static std::shared_mutex others;
  try {
    const std::shared_lock lock(others);
    return decode();
  } catch (const VipsFailure&) {}
  const std::unique_lock lock(others);
  vips_error_clear();
  try {
    return decode();
  } catch (const VipsFailure&) {
    std::string reason = vips_error_buffer();
    vips_error_clear();
    reason.resize(std::min(reason.size(), reason.find('\n')));
    fail(path, ": is broken or no image (", reason.empty() ? "no reason given" : reason, ")");
  }
}

/// Whether a file begins as an image does.  libvips takes much else too, by loaders of documents and scripts (SVG, PDF, what ImageMagick knows):
/// they follow names of other files, and a folder of images from strangers holds what its files' endings do not say.
bool begins_as_image(std::string_view bytes) {
  using namespace std::literals;
  constexpr std::string_view jpeg = "\xff\xd8\xff"sv, png = "\x89PNG\r\n\x1a\n"sv, gif = "GIF8"sv, bmp = "BM"sv, little_tiff = "II*\0"sv, big_tiff = "MM\0*"sv, little_tiff64 = "II+\0"sv, big_tiff64 = "MM\0+"sv,
                             jpeg2000 = "\0\0\0\x0cjP  "sv, jpeg2000_stream = "\xff\x4f\xff\x51"sv, jpeg_xl = "\0\0\0\x0cJXL "sv, jpeg_xl_stream = "\xff\x0a"sv;
  for (const std::string_view magic : {jpeg, png, gif, bmp, little_tiff, big_tiff, little_tiff64, big_tiff64, jpeg2000, jpeg2000_stream, jpeg_xl, jpeg_xl_stream})
    if (bytes.starts_with(magic)) return true;
  const bool is_webp = bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP", is_heif = bytes.size() >= 8 && bytes.substr(4, 4) == "ftyp";
  const bool is_pnm = bytes.size() > 2 && bytes[0] == 'P' && '1' <= bytes[1] && bytes[1] <= '6' && std::string_view(" \t\r\n#").find(bytes[2]) != std::string_view::npos;
  return is_webp || is_heif || is_pnm;
}
void require_image(const std::string& path, std::string_view bytes) {
  require(begins_as_image(bytes), path, ": is broken or no image (it begins as none of JPEG, PNG, WebP, TIFF, BMP, PNM, GIF, HEIF, JPEG 2000, JPEG XL)");
}

std::string bytes_of(const std::string& path) {
  std::error_code unknown;
  require(!std::filesystem::is_directory(path, unknown), path, ": is a folder, not an image");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  require(file.good(), path, ": cannot be opened: ", std::strerror(errno));
  const std::streamoff size = file.tellg();
  require(size > 0, path, ": is empty (0 bytes)");
  std::string bytes(static_cast<std::size_t>(size), '\0');
  if (!file.seekg(0).read(bytes.data(), size).good()) fail(path, ": cannot be read: ", std::strerror(errno));
  require_image(path, bytes);
  return bytes;
}

template <class T>
std::uint8_t to_u8(T value) { return static_cast<std::uint8_t>(value >> (8 * (sizeof(T) - 1))); }   // 16 bits: the upper 8, as PIL

/// What is left of `light` under this much ink: light * (255 - ink) / 255, rounded as PIL's MULDIV255.
std::uint8_t under_ink(int light, int ink) {
  const int product = ink * light + 128;
  return static_cast<std::uint8_t>(light - ((product + (product >> 8)) >> 8));
}

/// One row of `bands` values a pixel -> RGB.  One or two bands are gray (and alpha), four are RGB and alpha, or CMYK.
template <class T>
void row_to_rgb(const T* in, std::int64_t width, int bands, bool is_cmyk, std::uint8_t* out) {
  for (std::int64_t x = 0; x < width; ++x, in += bands, out += 3) {
    if (is_cmyk)
      for (int c = 0; c < 3; ++c) out[c] = under_ink(255 - to_u8(in[3]), to_u8(in[c]));
    else
      for (int c = 0; c < 3; ++c) out[c] = to_u8(in[bands < 3 ? 0 : c]);
  }
}

struct Extent { std::int64_t height, width; };
Extent turned(Extent image, int orientation) { return orientation < 5 ? image : Extent{image.width, image.height}; }   // EXIF; its own inverse
struct Frame { Extent resized, out; };   // the whole image after the resize; what is kept of it, or drawn around it

Frame frame_of(const std::string& path, Extent image, const DecodeOptions& options) {
  const std::int64_t size = options.size, shorter = std::min(image.height, image.width), longer = std::max(image.height, image.width);
  const auto with_short_and_long = [&](std::int64_t s, std::int64_t l) { return image.width <= image.height ? Extent{l, s} : Extent{s, l}; };
  const Extent whole = with_short_and_long(size, size * longer / shorter), square{size, size};      // torchvision's Resize
  switch (options.fit) {
    case Fit::cover: return {whole, square};
    case Fit::short_side:
      require(static_cast<double>(longer) <= options.max_aspect * static_cast<double>(shorter), path, ": is ", image.width, " x ", image.height,
              ", longer than --max-aspect ", options.max_aspect, " allows");
      return {whole, whole};
    case Fit::stretch: return {square, square};
    case Fit::pad: {                                                                                 // PIL's ImageOps.pad
      const double fitted = static_cast<double>(shorter) / static_cast<double>(longer) * static_cast<double>(size);
      return {with_short_and_long(std::max<std::int64_t>(1, std::llrint(fitted)), size), square};
    }
  }
  fail_with(exit_internal, "unknown fit");
}

Image open_image(const std::string& bytes) {
  return own(vips_image_new_from_buffer(bytes.data(), bytes.size(), "", "access", VIPS_ACCESS_SEQUENTIAL, "fail_on", VIPS_FAIL_ON_ERROR,
                                        nullptr));
}

Image open_shrunk_jpeg(const std::string& bytes, int shrink) {
  VipsImage* image = nullptr;
  // The buffer is not changed; the C API lacks the const.
  check(vips_jpegload_buffer(const_cast<char*>(bytes.data()), bytes.size(), &image, "access", VIPS_ACCESS_SEQUENTIAL, "fail_on", VIPS_FAIL_ON_ERROR,
                             "shrink", shrink, nullptr));
  return Image(image);
}

/// 8, 4 or 2 if that leaves at least four times the wanted extents of a JPEG, else 1.
int jpeg_shrink(const std::string& bytes, Extent image, Extent wanted) {
  int shrink = 8;
  while (shrink > 1 && (image.height < 4 * shrink * wanted.height || image.width < 4 * shrink * wanted.width)) shrink /= 2;
  const char* loader = shrink > 1 ? vips_foreign_find_load_buffer(bytes.data(), bytes.size()) : nullptr;
  return loader && std::string_view(loader).starts_with("VipsForeignLoadJpeg") ? shrink : 1;
}

/// Gives the rows of an image, as RGB, to add_row: strip by strip, on the calling thread.
template <class AddRow>
void read_rgb(VipsImage* opened, const AddRow& add_row) {
  Image converted;
  bool is_cmyk = opened->Type == VIPS_INTERPRETATION_CMYK && opened->Bands >= 4;
  VipsImage* image = opened;
  if (opened->BandFmt != VIPS_FORMAT_UCHAR && opened->BandFmt != VIPS_FORMAT_USHORT) {   // float TIFF and the like
    VipsImage *rgb = nullptr, *cast = nullptr;
    check(vips_colourspace(opened, &rgb, VIPS_INTERPRETATION_sRGB, nullptr));
    const Image keep(rgb);
    check(vips_cast(rgb, &cast, VIPS_FORMAT_UCHAR, nullptr));
    converted.reset(cast);
    image = cast, is_cmyk = false;
  }
  const bool is_deep = image->BandFmt == VIPS_FORMAT_USHORT, is_rgb = !is_deep && !is_cmyk && image->Bands == 3;
  std::vector<std::uint8_t> rgb(3 * static_cast<std::size_t>(image->Xsize));
  const Region region(vips_region_new(image));
  constexpr int strip = 16;
  for (int top = 0; top < image->Ysize; top += strip) {
    const VipsRect rows = {0, top, image->Xsize, std::min(strip, image->Ysize - top)};
    check(vips_region_prepare(region.get(), &rows));
    for (int y = top; y < top + rows.height; ++y) {
      const auto* row = reinterpret_cast<const std::uint8_t*>(VIPS_REGION_ADDR(region.get(), 0, y));
      if (is_deep) row_to_rgb(reinterpret_cast<const std::uint16_t*>(row), image->Xsize, image->Bands, is_cmyk, rgb.data());
      else if (!is_rgb) row_to_rgb(row, image->Xsize, image->Bands, is_cmyk, rgb.data());
      add_row(is_rgb ? row : rgb.data());
    }
  }
}

/// EXIF orientations 2 to 8: above 4 rows and columns change places; then the rows, the columns, or both are read from their end.
DecodedImage upright(const DecodedImage& in, int orientation) {
  const bool swaps = orientation >= 5;
  const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  DecodedImage out{swaps ? in.width : in.height, swaps ? in.height : in.width, std::vector<std::uint8_t>(in.pixels.size())};
  std::uint8_t* target = out.pixels.data();
  for (std::int64_t y = 0; y < out.height; ++y)
    for (std::int64_t x = 0; x < out.width; ++x, target += 3) {
      const std::int64_t row = swaps ? x : y, column = swaps ? y : x;
      std::memcpy(target, &in.pixels[3 * ((from_bottom ? in.height - 1 - row : row) * in.width + (from_right ? in.width - 1 - column : column))], 3);
    }
  return out;
}

/// Centers: cuts what is too large, leaves black around what is too small.  Halves round to even, as Python's round().
DecodedImage centered(DecodedImage in, Extent size) {
  if (in.height == size.height && in.width == size.width) return in;
  const auto margin = [](std::int64_t more, std::int64_t less) { return std::llrint(static_cast<double>(more - less) / 2); };
  DecodedImage out{size.height, size.width, std::vector<std::uint8_t>(3 * size.height * size.width)};
  const std::int64_t rows = std::min(in.height, size.height), columns = std::min(in.width, size.width);
  const std::int64_t from_y = margin(std::max(in.height, size.height), size.height), to_y = margin(std::max(in.height, size.height), in.height);
  const std::int64_t from_x = margin(std::max(in.width, size.width), size.width), to_x = margin(std::max(in.width, size.width), in.width);
  for (std::int64_t y = 0; y < rows; ++y)
    std::memcpy(&out.pixels[3 * ((to_y + y) * out.width + to_x)], &in.pixels[3 * ((from_y + y) * in.width + from_x)], 3 * columns);
  return out;
}

int orientation_of(VipsImage* image, const DecodeOptions& options) { return options.rotate ? vips_image_get_orientation(image) : 1; }

/// A line of pixels would become millions of lines of them, of which a square is kept.
void require_room(const std::string& path, Extent stored, Extent resized, const DecodeOptions& options) {
  const auto area = [](std::int64_t height, std::int64_t width) { return static_cast<double>(height) * static_cast<double>(width); };
  const double aspect = options.fit == Fit::short_side ? std::max(options.max_aspect, cut_aspect) : cut_aspect;
  const double most = std::min(std::max(area(stored.height, stored.width), aspect * area(options.size, options.size)), static_cast<double>(max_pixels));
  require(std::max(area(resized.height, resized.width), area(stored.height, resized.width)) <= most, path, ": is ", stored.width, " x ", stored.height, ", too long to be resized to ", options.size);
}

void require_sane(const std::string& path, VipsImage* image) {
  require(std::int64_t{image->Xsize} * image->Ysize <= max_pixels && std::max(image->Xsize, image->Ysize) <= max_side, path, ": is ", image->Xsize, " x ", image->Ysize,
          ", more than ", max_pixels, " pixels, or ", max_side, " of a side");
}

}  // namespace

void start_codec() {
  if (VIPS_INIT("lockstep") != 0) fail_with(exit_internal, "libvips does not start: ", vips_error_buffer());
  vips_concurrency_set(1);
  vips_cache_set_max(0);                                            // no file is read twice
  const auto ignore = [](const gchar*, GLogLevelFlags, const gchar*, gpointer) {};
  for (const char* domain : {"VIPS", "GLib-GObject"})               // odd EXIF and headers are common; what cannot be decoded is an error all the same
    g_log_set_handler(domain, static_cast<GLogLevelFlags>(G_LOG_LEVEL_WARNING | G_LOG_LEVEL_INFO), ignore, nullptr);
}

DecodedImage decode_image(const std::string& path, const DecodeOptions& options) {
  const std::string bytes = bytes_of(path);
  int orientation = 1;
  Extent out{};
  DecodedImage image = with_own_errors(path, [&] {
    Image opened = open_image(bytes);
    require_sane(path, opened.get());
    orientation = orientation_of(opened.get(), options);
    const Extent stored{opened->Ysize, opened->Xsize};
    const Frame frame = frame_of(path, turned(stored, orientation), options);
    out = frame.out;
    const Extent resized = turned(frame.resized, orientation);
    require_room(path, stored, resized, options);
    const int shrink = jpeg_shrink(bytes, stored, resized);
    if (shrink > 1) opened = open_shrunk_jpeg(bytes, shrink);
    const auto covered = [&](std::int64_t extent) { return static_cast<double>(extent) / shrink; };
    Resize resize(opened->Ysize, opened->Xsize, covered(stored.height), covered(stored.width), resized.height, resized.width);
    read_rgb(opened.get(), [&](const std::uint8_t* row) { resize.add_row(row); });
    return DecodedImage{resized.height, resized.width, resize.result()};
  });
  if (orientation != 1) image = upright(image, orientation);
  return centered(std::move(image), out);
}

std::pair<std::int64_t, std::int64_t> decoded_size(const std::string& path, const DecodeOptions& options) {
  std::array<char, 16> first{};
  if (std::ifstream file(path, std::ios::binary); file) file.read(first.data(), first.size()), require_image(path, {first.data(), static_cast<std::size_t>(file.gcount())});
  int orientation = 1;
  const Extent image = with_own_errors(path, [&] {
    const Image opened = own(vips_image_new_from_file(path.c_str(), "access", VIPS_ACCESS_SEQUENTIAL, nullptr));
    require_sane(path, opened.get());
    orientation = orientation_of(opened.get(), options);
    return Extent{opened->Ysize, opened->Xsize};
  });
  const Frame frame = frame_of(path, turned(image, orientation), options);
  require_room(path, image, turned(frame.resized, orientation), options);
  return {frame.out.height, frame.out.width};
}

}  // namespace lockstep
