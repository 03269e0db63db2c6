// html: pieces of a page: escaped text, numbers, pictures within the page, the frame around it all.
// A page is one file without any address of another: its style, its script and its pictures lie in it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// As text or inside a quoted attribute.
std::string escaped(std::string_view text);
/// The shortest text that reads back as the same number, as metrics.jsonl has it.
std::string exact(double value);
/// For people: `digits` significant ones, thousands set apart ("12,340"); "–" for what is not finite.
std::string shown(double value, int digits = 4);
std::string shown_percent(double fraction);              // "93.25 %"

/// data: URIs of uncompressed BMP files.  rgb: [height, width, 3].
std::string picture_uri(std::span<const std::uint8_t> rgb, std::int64_t height, std::int64_t width);
/// One byte a pixel, [height, width], from dark (0) to light (255).
std::string heat_uri(std::span<const std::uint8_t> levels, std::int64_t height, std::int64_t width);

/// <section> with its heading.
std::string section(const std::string& title, const std::string& body);
/// The whole page.
std::string page(const std::string& title, const std::string& body);

}  // namespace lockstep
