#include "train/report/html.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "train/report/page_text.hpp"

namespace lockstep {
namespace {

std::string base64(std::span<const std::uint8_t> bytes) {
  static constexpr char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t k) { return i + k < bytes.size() ? std::uint32_t{bytes[i + k]} : 0u; };
    const std::uint32_t three = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (int k = 0; k < 4; ++k) text += i + static_cast<std::size_t>(k) <= bytes.size() ? letters[three >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

struct Color { std::uint8_t r, g, b; };

/// Dark blue over violet and orange to pale yellow: even steps to the eye, seen on white and on black.
Color heat_color(int level) {
  constexpr Color stops[] = {{18, 20, 48}, {84, 30, 120}, {182, 55, 100}, {244, 125, 62}, {252, 240, 170}};
  const double at = level / 255.0 * 4;
  const auto i = std::min(static_cast<std::size_t>(at), std::size_t{3});
  const auto mix = [&](std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>(std::lround(a + (at - static_cast<double>(i)) * (b - a))); };
  return {mix(stops[i].r, stops[i + 1].r), mix(stops[i].g, stops[i + 1].g), mix(stops[i].b, stops[i + 1].b)};
}

/// BMP: file header, BITMAPINFOHEADER, palette, rows from the bottom up, each padded to four bytes.
class Bmp {
 public:
  Bmp(std::int64_t height, std::int64_t width, int bits, int colors) {
    const auto row_bytes = (width * bits / 8 + 3) / 4 * 4;
    const auto pixels = static_cast<std::uint32_t>(height * row_bytes), before = static_cast<std::uint32_t>(54 + 4 * colors);
    bytes_ = {'B', 'M'};
    bytes_.reserve(before + pixels);
    for (const std::uint32_t word : {before + pixels, 0u, before, 40u, static_cast<std::uint32_t>(width), static_cast<std::uint32_t>(height)}) put(word, 4);
    put(1, 2), put(static_cast<std::uint32_t>(bits), 2);
    for (const std::uint32_t word : {0u, pixels, 3780u, 3780u, static_cast<std::uint32_t>(colors), 0u}) put(word, 4);
    for (int i = 0; i < colors; ++i) put(heat_color(i)), put(0, 1);
    first_ = bytes_.size();
  }
  void put(Color c) { put(static_cast<std::uint32_t>(c.r) << 16 | static_cast<std::uint32_t>(c.g) << 8 | c.b, 3); }
  void put(std::uint32_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  void end_row() { bytes_.resize(first_ + (bytes_.size() - first_ + 3) / 4 * 4); }
  std::string uri() const { return "data:image/bmp;base64," + base64(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
  std::size_t first_ = 0;                // of the pixels
};

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string exact(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string shown(double value, int digits) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size >= 1e9 || (size > 0 && size < 1e-3)) return formatted("%.*g", digits, value);
  const int before = size > 0 ? static_cast<int>(std::floor(std::log10(size))) + 1 : 1;
  std::string number = formatted("%.*f", std::max(0, digits - before), value);
  if (number.find('.') != std::string::npos) number.erase(number.find_last_not_of('0') + 1);
  if (number.ends_with('.')) number.pop_back();
  const std::size_t first = number.starts_with('-') ? 1 : 0, point = std::min(number.find('.'), number.size());
  for (std::size_t at = point; at > first + 3; at -= 3) number.insert(at - 3, 1, ',');
  return number;
}

std::string shown_percent(double fraction) {
  if (!std::isfinite(fraction)) return "–";
  return formatted("%.2f %%", 100 * fraction);
}

std::string picture_uri(std::span<const std::uint8_t> rgb, std::int64_t height, std::int64_t width) {
  Bmp bmp(height, width, 24, 0);
  for (std::int64_t y = height - 1; y >= 0; --y, bmp.end_row())
    for (std::int64_t x = 0; x < width; ++x) {
      const std::uint8_t* p = rgb.data() + 3 * (y * width + x);
      bmp.put(Color{p[0], p[1], p[2]});
    }
  return bmp.uri();
}

std::string heat_uri(std::span<const std::uint8_t> levels, std::int64_t height, std::int64_t width) {
  Bmp bmp(height, width, 8, 256);
  for (std::int64_t y = height - 1; y >= 0; --y, bmp.end_row())
    for (std::int64_t x = 0; x < width; ++x) bmp.put(levels[static_cast<std::size_t>(y * width + x)], 1);
  return bmp.uri();
}

std::string section(const std::string& title, const std::string& body) { return "<section><h2>" + title + "</h2>\n" + body + "</section>\n"; }

std::string page(const std::string& title, const std::string& body) {
  return text_of("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
                 escaped(title), "</title>\n<style>", page_style, "</style></head>\n<body><main>\n", body, "</main><div id=\"tip\" hidden></div>\n<script>", page_script,
                 "</script></body></html>\n");
}

}  // namespace lockstep
