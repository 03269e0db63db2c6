// chart: curves over the course of a run -> one <figure> with inline SVG.
// The points of a curve stand in the picture as they are in metrics.jsonl; the picture's transform brings them to their place.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct Point {
  double x = 0, y = 0;
};

struct Curve {
  std::string name;
  int color = 0;                         // of the page's eight
  std::vector<Point> points;             // x ascending; a y that is not finite interrupts the curve
};

struct Chart {
  std::string title;
  bool is_percent = false;               // y is a fraction, shown in percent
  std::vector<Curve> curves;
  std::vector<double> resumes = {};      // x where a run went on
  double x_per_tick = 1;                 // x of one epoch
  bool has_names = true;                 // the legend lists the curves
};

inline constexpr std::size_t most_points = 2000;         // of a curve

/// At most `most` of the points: of each stretch the lowest and the highest, so that no peak is lost; the first and the last stay.
std::vector<Point> decimated(std::vector<Point> points, std::size_t most = most_points);
/// Nothing when no curve has a point.
std::string draw(const Chart& chart);

}  // namespace lockstep
