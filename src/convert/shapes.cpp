// shapes: a generated data set for first runs and tests: 32x32 RGB, ten anti-aliased shapes of random colour, pose and size on a
// gradient with clutter and noise.  Contrast takes either sign, so a linear classifier sees little (15 %); ResNet-20 passes 99 % after
// two epochs of 10000 images in batches of 64.  An image is a pure function of (seed, split, index); its class is index mod 10.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/random.hpp"
#include "convert/source.hpp"

namespace lockstep {
namespace {

constexpr int side = 32, samples = 4;                               // samples x samples points a pixel
constexpr float pi = 3.14159265f, noise_levels = 10;           // noise: standard deviation in gray levels

struct Point { float x, y; };
float length(Point p) { return std::hypot(p.x, p.y); }

/// Whether p lies in the shape, which fills about the unit disc.
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

class Shapes final : public Source {
 public:
  std::string name() const override { return "shapes"; }
  std::string summary() const override { return "no INPUT: generates 32x32 images of ten shapes, for first runs and tests"; }
  bool has_input() const override { return false; }
  std::vector<SourceOption> options() override {
    return {{"train", "images of split train", &images_[0]}, {"val", "images of split val", &images_[1]}};
  }

  Listing open(const std::string&, std::uint64_t seed) override {
    seed_ = seed;
    Listing listing;
    ShardHeader& header = listing.header;
    header.height = header.width = header.size = side;
    header.fit = header.rotate = "none", header.source = name();
    for (const Shape& shape : shapes) header.classes.emplace_back(shape.name);
    for (const int split : {0, 1}) {
      const std::string word = split == 0 ? "train" : "val";
      require(images_[split] >= 1, "--", word, " = ", images_[split], " must be at least 1");
      SourceSplit& out = listing.splits.emplace_back(SourceSplit{.name = word, .is_shuffled = split == 0});
      for (std::int64_t i = 0; i < images_[split]; ++i)
        out.items.push_back({static_cast<std::int32_t>(i % std::ssize(shapes)), text_of(word, "/", i)});
    }
    return listing;
  }

  DecodedImage image(const Listing& listing, std::size_t split, std::size_t item) const override;

 private:
  std::uint64_t seed_ = 0;
  std::int64_t images_[2] = {10000, 2000};
};

/// A shape somewhere in the image, and its colour.
struct Placed {
  const Shape& shape;
  Point center;
  float cosine, sine, radius;                                       // pixels
  Color color;
  float coverage(int x, int y) const {
    int inside = 0;
    for (int i = 0; i < samples * samples; ++i) {
      const float dx = static_cast<float>(x) + (static_cast<float>(i % samples) + 0.5f) / samples - center.x;
      const float dy = static_cast<float>(y) + (static_cast<float>(i / samples) + 0.5f) / samples - center.y;
      inside += shape.holds({(cosine * dx + sine * dy) / radius, (cosine * dy - sine * dx) / radius});
    }
    return static_cast<float>(inside) / (samples * samples);
  }
};

const Shape speck = {"speck", [](Point p) { return std::abs(p.x) < 1 && std::abs(p.y) < 0.35f; }};

DecodedImage Shapes::image(const Listing& listing, std::size_t split, std::size_t item) const {
  std::uint32_t drawn = 0;
  const auto bits = [&] { return random_bits(seed_, Purpose::shapes, split, item, drawn++); };
  const auto four = [&] { return uniform4(seed_, Purpose::shapes, split, item, drawn++); };
  const auto between = [](float u, float low, float high) { return low + u * (high - low); };

  const auto base = four(), slope = four();
  const Color ground = {between(base[0], 50, 205), between(base[1], 50, 205), between(base[2], 50, 205)};
  // Each channel differs from the ground by low to high levels, all in the same direction.
  const auto color_off_ground = [&](float low, float high) {
    const auto u = four();
    Color color;
    const float sign = u[3] < 0.5f ? -1.f : 1.f;
    for (int c = 0; c < 3; ++c) color[c] = std::clamp(ground[c] + sign * between(u[c], low, high), 0.f, 255.f);
    return color;
  };
  std::vector<Placed> placed;
  const auto place = [&](const Shape& shape, float least, float most, float turn, float margin, const Color& color) {
    const auto u = four();
    const float angle = between(u[2], -turn, turn);
    placed.push_back({shape, {between(u[0], margin, side - margin), between(u[1], margin, side - margin)}, std::cos(angle), std::sin(angle),
                      between(u[3], least, most), color});
  };
  for (int i = 0; i < 4; ++i) place(speck, 1.5f, 3.5f, pi, 0, color_off_ground(20, 60));
  place(shapes[static_cast<std::size_t>(listing.splits[split].items[item].label)], 8, 13, pi / 6, 12.5f,
        color_off_ground(50, 120));

  DecodedImage out{side, side, {}};
  out.pixels.reserve(side * side * 3);
  for (int y = 0; y < side; ++y)
    for (int x = 0; x < side; ++x) {
      Color color = ground;
      for (int c = 0; c < 3; ++c)
        color[c] += 2 * ((slope[0] - 0.5f) * static_cast<float>(x - side / 2) + (slope[1] - 0.5f) * static_cast<float>(y - side / 2));
      for (const Placed& one : placed)
        if (std::abs(static_cast<float>(x) - one.center.x) < one.radius + 2 && std::abs(static_cast<float>(y) - one.center.y) < one.radius + 2) {
          const float coverage = one.coverage(x, y);
          for (int c = 0; c < 3; ++c) color[c] += coverage * (one.color[c] - color[c]);
        }
      const Bits4 noise = bits();                                   // the sum of a word's four bytes is nearly normal, deviation 148
      for (int c = 0; c < 3; ++c) {
        const std::uint32_t word = noise[c];
        const auto sum = static_cast<float>((word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24));
        out.pixels.push_back(static_cast<std::uint8_t>(std::clamp(color[c] + noise_levels / 148 * (sum - 510), 0.f, 255.f)));
      }
    }
  return out;
}

}  // namespace

std::unique_ptr<Source> make_shapes() { return std::make_unique<Shapes>(); }

}  // namespace lockstep
