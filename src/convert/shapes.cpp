// shapes: a generated data set for first runs and tests: RGB, ten kinds of anti-aliased shapes of random pose and size on a gradient with
// clutter and noise.  Up to ten classes are kinds of shape of random colour, whose contrast takes either sign, so a linear classifier sees
// little (15 %); ResNet-20 passes 99 % after two epochs of 10000 images of 32 x 32 in batches of 64.  More classes are kinds of shape in
// one of eleven colours on another.  An image is a pure function of (seed, split, index, classes, size); its class is index mod classes.
// A larger image is the same picture drawn finer: all lengths are in 32nds of the image's side.
#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/random.hpp"
#include "convert/source.hpp"

namespace lockstep {
namespace {

constexpr float side = 32;                                     // of an image, in the unit of all lengths here
constexpr int samples = 4;                                     // samples x samples points a pixel
constexpr float pi = 3.14159265f, noise_levels = 10;           // noise: standard deviation in gray levels

struct Point { float x, y; };
float length(Point p) { return std::hypot(p.x, p.y); }

/// Whether p lies in the shape, which fills about the unit disc and ends within 1.2 of its middle.
struct Shape {
  const char* name;
  bool (*holds)(Point p);
};
/// A star-shaped outline: the radius runs linearly between `outer` at n corners and `inner` between them, along the straight edges.
bool in_polygon(Point p, int corners, float inner) {
  const float sector = 2 * pi / static_cast<float>(corners), angle = std::atan2(p.y, p.x);
  const float within = std::abs(angle - sector * std::round(angle / sector));          // 0 at a corner, sector/2 between two
  const Point q = {length(p) * std::cos(within), length(p) * std::sin(within)};
  const Point a = {1, 0}, b = {inner * std::cos(sector / 2), inner * std::sin(sector / 2)};
  return (b.x - a.x) * (q.y - a.y) - (b.y - a.y) * (q.x - a.x) >= 0;
}
const std::array<Shape, 10> shapes = {{
  {"bars", [](Point p) { return std::abs(p.x) < 0.8f && std::abs(p.y) < 0.85f && std::abs(std::abs(p.y) - 0.57f) < 0.28f; }},
  {"bowtie", [](Point p) { return std::abs(p.x) < 0.9f && std::abs(p.y) < 0.85f * std::abs(p.x); }},
  {"crescent", [](Point p) { return length(p) < 0.95f && length({p.x - 0.5f, p.y}) > 0.75f; }},
  {"cross", [](Point p) { return std::min(std::abs(p.x), std::abs(p.y)) < 0.25f && std::max(std::abs(p.x), std::abs(p.y)) < 0.95f; }},
  {"disc", [](Point p) { return length(p) < 0.85f; }},
  {"heart", [](Point p) {
     const float x = 1.2f * p.x, y = 1.2f * p.y + 0.15f, k = x * x + y * y - 1;
     return k * k * k - x * x * y * y * y < 0;
   }},
  {"ring", [](Point p) { return std::abs(length(p) - 0.7f) < 0.22f; }},
  {"square", [](Point p) { return std::max(std::abs(p.x), std::abs(p.y)) < 0.75f; }},
  {"star", [](Point p) { return in_polygon(p, 5, 0.4f); }},
  {"triangle", [](Point p) { return in_polygon(p, 3, 0.5f); }},
}};

using Color = std::array<float, 3>;

struct NamedColor {
  const char* name;
  Color color;
};
/// The basic colour terms of English (Berlin and Kay 1969).
const std::array<NamedColor, 11> colors = {{
  {"black", {25, 25, 25}}, {"blue", {40, 70, 210}}, {"brown", {115, 65, 25}}, {"gray", {128, 128, 128}}, {"green", {40, 150, 50}}, {"orange", {240, 135, 25}},
  {"pink", {245, 150, 185}}, {"purple", {130, 45, 165}}, {"red", {210, 30, 40}}, {"white", {235, 235, 235}}, {"yellow", {240, 220, 50}},
}};

struct ShapeClass {
  std::string name;
  const Shape* shape;
  const NamedColor *color = nullptr, *ground = nullptr;             // null: any
};

/// Sorted by name.  More than ten: all shapes in one pair of different colours, then all in the next, as far as `count` goes.
std::vector<ShapeClass> classes_of(std::size_t count) {
  std::vector<ShapeClass> classes;
  for (std::size_t i = 0; i < count; ++i) {
    const Shape& shape = shapes[i % shapes.size()];
    if (count <= shapes.size()) {
      classes.push_back({shape.name, &shape});
      continue;
    }
    const std::size_t pair = i / shapes.size(), apart = 1 + pair / colors.size();   // 1 to 10
    const NamedColor& color = colors[pair % colors.size()];
    const NamedColor& ground = colors[(pair + apart) % colors.size()];
    classes.push_back({text_of(color.name, "-", shape.name, "-on-", ground.name), &shape, &color, &ground});
  }
  std::ranges::sort(classes, {}, &ShapeClass::name);
  return classes;
}

class Shapes final : public Source {
 public:
  std::string name() const override { return "shapes"; }
  std::string summary() const override { return "no INPUT: generates images of ten kinds of shapes, for first runs and tests"; }
  bool has_input() const override { return false; }
  std::vector<SourceOption> options() override {
    return {{"train", "images of split train", &images_[0]},
            {"val", "images of split val", &images_[1]},
            {"size", "pixels a side, 8 to 1024", &size_, {}, "32"},
            {"classes", "2 to 1000; above 10 the colours of shape and ground count too", &class_count_, {}, "10"}};
  }

  Listing open(const std::string&, std::uint64_t seed) override {
    require(size_ >= 8 && size_ <= 1024, "--size ", size_, " must be from 8 to 1024");
    require(class_count_ >= 2 && class_count_ <= 1000, "--classes ", class_count_, " must be from 2 to 1000");
    seed_ = seed;
    classes_ = classes_of(static_cast<std::size_t>(class_count_));
    Listing listing;
    ShardHeader& header = listing.header;
    header.height = header.width = header.size = size_;
    header.fit = header.rotate = "none", header.source = name();
    for (const ShapeClass& one : classes_) header.classes.push_back(one.name);
    for (const int split : {0, 1}) {
      const std::string word = split == 0 ? "train" : "val";
      require(images_[split] >= 1, "--", word, " = ", images_[split], " must be at least 1");
      SourceSplit& out = listing.splits.emplace_back(SourceSplit{.name = word, .is_shuffled = split == 0});
      for (std::int64_t i = 0; i < images_[split]; ++i)
        out.items.push_back({static_cast<std::int32_t>(i % class_count_), text_of(word, "/", i)});
    }
    return listing;
  }

  DecodedImage image(const Listing& listing, std::size_t split, std::size_t item) const override;

 private:
  std::uint64_t seed_ = 0;
  std::int64_t images_[2] = {10000, 2000}, size_ = 32, class_count_ = 10;
  std::vector<ShapeClass> classes_;
};

/// A shape somewhere in the image, and its colour.
struct Placed {
  const Shape& shape;
  Point center;
  float cosine, sine, radius;
  Color color;
  bool holds(float x, float y) const {
    const float dx = x - center.x, dy = y - center.y;
    return shape.holds({(cosine * dx + sine * dy) / radius, (cosine * dy - sine * dx) / radius});
  }
  float coverage(int x, int y, float pixel) const {
    int inside = 0;
    for (int i = 0; i < samples * samples; ++i)
      inside += holds((static_cast<float>(x) + (static_cast<float>(i % samples) + 0.5f) / samples) * pixel,
                      (static_cast<float>(y) + (static_cast<float>(i / samples) + 0.5f) / samples) * pixel);
    return static_cast<float>(inside) / (samples * samples);
  }
};

/// Paints one placed shape over the rows of an image, from the top down.
class Brush {
 public:
  Brush(const Placed& placed, int pixels) : placed_(placed), pixel_(side / static_cast<float>(pixels)), is_fine_(pixel_ < 1) {
    // Wide enough for any shape; at 32 pixels a bowtie's corner may miss a few hundredths, and sets of that size shall stay what they are.
    const float reach = is_fine_ ? 1.2f * placed.radius + pixel_ : placed.radius + 2 * pixel_;
    const auto near = [&](float center) {                           // pixels that begin within reach of the center: [first, second)
      const auto is_near = [&](int i) { return std::abs(static_cast<float>(i) * pixel_ - center) < reach; };
      int begin = 0, end = pixels;
      while (begin < end && !is_near(begin)) ++begin;
      while (begin < end && !is_near(end - 1)) --end;
      return std::pair(begin, end);
    };
    std::tie(left_, right_) = near(placed.center.x);
    std::tie(top_, bottom_) = near(placed.center.y);
    if (is_fine_) below_ = corners(top_);
  }

  void paint(int y, std::vector<Color>& row) {
    if (y < top_ || y >= bottom_) return;
    if (is_fine_) above_ = std::exchange(below_, corners(y + 1));
    for (int x = left_; x < right_; ++x) {
      const float coverage = is_fine_ ? fine_coverage(x, y) : placed_.coverage(x, y, pixel_);
      if (coverage == 0) continue;
      Color& color = row[static_cast<std::size_t>(x)];
      for (std::size_t c = 0; c < 3; ++c) color[c] += coverage * (placed_.color[c] - color[c]);
    }
  }

 private:
  /// Of the pixels of row y, the upper left corners, and one more: whether the shape holds them.
  std::vector<char> corners(int y) const {
    std::vector<char> held;
    for (int x = left_; x <= right_; ++x) held.push_back(placed_.holds(static_cast<float>(x) * pixel_, static_cast<float>(y) * pixel_));
    return held;
  }
  /// Points are counted only where the four corners differ, which misses nothing but tips thinner than a pixel.
  float fine_coverage(int x, int y) const {
    const auto i = static_cast<std::size_t>(x - left_);
    const int held = above_[i] + above_[i + 1] + below_[i] + below_[i + 1];
    return held == 0 ? 0 : held == 4 ? 1 : placed_.coverage(x, y, pixel_);
  }

  Placed placed_;
  float pixel_;                                                     // its side
  bool is_fine_;
  int left_, right_, top_, bottom_;
  std::vector<char> above_, below_;
};

/// The sum of a word's four bytes less its mean: nearly normal, deviation 148.
float noise_of(std::uint32_t word) {
  const std::uint32_t pairs = (word & 0x00ff00ff) + (word >> 8 & 0x00ff00ff);
  return static_cast<float>(static_cast<std::int32_t>((pairs & 0xffff) + (pairs >> 16))) - 510;
}

/// A row's pixels, each with the noise of its bits.  Plain loops over arrays, so that compilers make vector instructions of them.
template <class BitsOf>
void write_noisy(const std::vector<Color>& row, const BitsOf& bits_of, std::uint8_t* pixels) {
  const std::size_t count = row.size();
  std::vector<Color> noise(count);
  for (std::size_t x = 0; x < count; ++x) {
    const Bits4 words = bits_of(static_cast<std::uint32_t>(x));
    for (int c = 0; c < 3; ++c) noise[x][c] = noise_of(words[c]);
  }
  for (std::size_t x = 0; x < count; ++x)
    for (std::size_t c = 0; c < 3; ++c) pixels[3 * x + c] = static_cast<std::uint8_t>(std::clamp(row[x][c] + noise_levels / 148 * noise[x][c], 0.f, 255.f));
}

const Shape speck = {"speck", [](Point p) { return std::abs(p.x) < 1 && std::abs(p.y) < 0.35f; }};

DecodedImage Shapes::image(const Listing& listing, std::size_t split, std::size_t item) const {
  std::uint32_t drawn = 0;
  const auto four = [&] { return uniform4(seed_, Purpose::shapes, split, item, drawn++); };
  const auto between = [](float u, float low, float high) { return low + u * (high - low); };
  const auto close_to = [&](const Color& color, const Uniform4& u) {
    return Color{color[0] + between(u[0], -15, 15), color[1] + between(u[1], -15, 15), color[2] + between(u[2], -15, 15)};
  };
  const ShapeClass& drawn_class = classes_[static_cast<std::size_t>(listing.splits[split].items[item].label)];

  const auto base = four(), slope = four();
  const Color ground = drawn_class.ground ? close_to(drawn_class.ground->color, base)
                                          : Color{between(base[0], 50, 205), between(base[1], 50, 205), between(base[2], 50, 205)};
  // Each channel differs from the ground by low to high levels, all in the same direction.
  const auto color_off_ground = [&](float low, float high) {
    const auto u = four();
    Color color;
    const float sign = u[3] < 0.5f ? -1.f : 1.f;
    for (int c = 0; c < 3; ++c) color[c] = std::clamp(ground[c] + sign * between(u[c], low, high), 0.f, 255.f);
    return color;
  };
  const auto pixels = static_cast<int>(size_);
  const float pixel = side / static_cast<float>(pixels);
  const auto off_middle = [&](int i) { return (static_cast<float>(i) + 0.5f) * pixel - 0.5f - side / 2; };   // 0 in the 32nd behind the middle
  std::vector<Brush> brushes;
  const auto place = [&](const Shape& shape, float least, float most, float turn, float margin, const Color& color) {
    const auto u = four();
    const float angle = between(u[2], -turn, turn);
    brushes.emplace_back(Placed{shape, {between(u[0], margin, side - margin), between(u[1], margin, side - margin)}, std::cos(angle), std::sin(angle),
                                between(u[3], least, most), color}, pixels);
  };
  for (int i = 0; i < 4; ++i) place(speck, 1.5f, 3.5f, pi, 0, color_off_ground(20, 60));
  place(*drawn_class.shape, 8, 13, pi / 6, 12.5f, drawn_class.color ? close_to(drawn_class.color->color, four()) : color_off_ground(50, 120));

  DecodedImage out{size_, size_, std::vector<std::uint8_t>(static_cast<std::size_t>(3 * size_ * size_))};
  std::vector<Color> row(static_cast<std::size_t>(pixels));
  for (int y = 0; y < pixels; ++y) {
    const float down = (slope[1] - 0.5f) * off_middle(y);
    for (int x = 0; x < pixels; ++x) {
      const float brighter = 2 * ((slope[0] - 0.5f) * off_middle(x) + down);
      row[static_cast<std::size_t>(x)] = {ground[0] + brighter, ground[1] + brighter, ground[2] + brighter};
    }
    for (Brush& brush : brushes) brush.paint(y, row);
    const auto bits_of = [seed = seed_, split, item, first = drawn + static_cast<std::uint32_t>(y * pixels)](std::uint32_t x) {
      return random_bits(seed, Purpose::shapes, split, item, first + x);
    };
    write_noisy(row, bits_of, out.pixels.data() + 3 * y * size_);
  }
  return out;
}

}  // namespace

std::unique_ptr<Source> make_shapes() { return std::make_unique<Shapes>(); }

}  // namespace lockstep
