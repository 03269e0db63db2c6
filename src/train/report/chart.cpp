#include "train/report/chart.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "train/report/html.hpp"

namespace lockstep {
namespace {

constexpr double width = 620, height = 250, left = 64, right = 14, top = 10, bottom = 40;
constexpr std::size_t most_dots = 40;                    // a curve of fewer points shows each

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void add(double v) { low = std::min(low, v), high = std::max(high, v); }
  bool is_empty() const { return low > high; }
};

bool is_drawn(const Point& p) { return std::isfinite(p.x) && std::isfinite(p.y); }

/// 1, 2 or 5 times a power of ten, so that about `count` of them fill the range.
double nice_step(const Range& range, int count) {
  const double raw = (range.high - range.low) / count, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

/// Wide enough to be divided, also where all values are one.
Range widened(Range range) {
  if (range.high - range.low <= 1e-12 * std::max(std::abs(range.high), std::abs(range.low)) || range.low == range.high) {
    const double by = range.low == 0 ? 1 : 0.1 * std::abs(range.low);
    return {range.low - by, range.high + by};
  }
  return range;
}

/// Where a value lies in the picture: value * scale + offset.
struct Axis {
  Range range;
  double scale, offset;
  double at(double value) const { return value * scale + offset; }
};
Axis x_axis(const Range& r) {
  const double scale = (width - left - right) / (r.high - r.low);
  return {r, scale, left - r.low * scale};
}
Axis y_axis(const Range& r) {
  const double scale = -(height - top - bottom) / (r.high - r.low);
  return {r, scale, height - bottom - r.low * scale};
}

std::string place(double v) {
  const double rounded = std::round(100 * v) / 100;
  return exact(rounded == 0 ? 0 : rounded);
}

std::string tick_label(double value, double step, bool is_percent) {
  if (std::abs(value) < 1e-9 * step) value = 0;
  if (is_percent) return shown(100 * value, 6) + " %";
  if (std::abs(value) >= 1e6) return shown(value / 1e6) + " M";
  return shown(value, 6);
}

std::string ticks(const Chart& chart, const Axis& x, const Axis& y) {
  std::string lines, labels;
  const double y_step = nice_step(y.range, 7), x_step = nice_step({x.range.low / chart.x_per_tick, x.range.high / chart.x_per_tick}, 8);
  for (double v = std::ceil(y.range.low / y_step - 1e-9) * y_step; v <= y.range.high + 1e-9 * y_step; v += y_step) {
    lines += text_of("M", left, " ", place(y.at(v)), "H", width - right);
    labels += text_of("<text text-anchor=\"end\" x=\"", left - 7, "\" y=\"", place(y.at(v) + 4), "\">", tick_label(v, y_step, chart.is_percent), "</text>");
  }
  for (double v = std::ceil(x.range.low / chart.x_per_tick / x_step - 1e-9) * x_step; v * chart.x_per_tick <= x.range.high + 1e-9 * x_step * chart.x_per_tick; v += x_step) {
    const double at = x.at(v * chart.x_per_tick);
    lines += text_of("M", place(at), " ", height - bottom, "v5");
    labels += text_of("<text text-anchor=\"middle\" x=\"", place(at), "\" y=\"", height - bottom + 18, "\">", tick_label(v, x_step, false), "</text>");
  }
  labels += text_of("<text text-anchor=\"middle\" x=\"", (left + width - right) / 2, "\" y=\"", height - 5, "\">epoch</text>");
  return "<path class=\"grid\" d=\"" + lines + "\"/>" + labels;
}

std::string curve(const Curve& c, const std::string& transform) {
  std::string out, points, dots;
  const auto flush = [&] {
    if (!points.empty())
      out += text_of("<polyline class=\"curve\" style=\"--c:var(--c", c.color, ")\" data-name=\"", escaped(c.name), "\" transform=\"", transform, "\" points=\"", points, "\"/>");
    points.clear();
  };
  const bool has_dots = static_cast<std::size_t>(std::ranges::count_if(c.points, is_drawn)) <= most_dots;
  for (const Point& p : c.points) {
    if (!is_drawn(p)) {
      flush();
      continue;
    }
    points += text_of(points.empty() ? "" : " ", exact(p.x), ",", exact(p.y));
    if (has_dots) dots += text_of("M", exact(p.x), " ", exact(p.y), "h0");
  }
  flush();
  if (!dots.empty()) out += text_of("<path class=\"dots\" style=\"--c:var(--c", c.color, ")\" transform=\"", transform, "\" d=\"", dots, "\"/>");
  return out;
}

}  // namespace

std::vector<Point> decimated(std::vector<Point> points, std::size_t most) {
  if (points.size() <= most) return points;
  const std::size_t stretches = most / 2 - 1;
  std::vector<Point> kept = {points.front()};
  for (std::size_t i = 0; i < stretches; ++i) {
    const std::size_t begin = 1 + i * (points.size() - 2) / stretches, end = 1 + (i + 1) * (points.size() - 2) / stretches;
    std::size_t low = begin, high = begin;
    for (std::size_t k = begin; k < end; ++k) {
      if (points[k].y < points[low].y || !std::isfinite(points[low].y)) low = k;
      if (points[k].y > points[high].y || !std::isfinite(points[high].y)) high = k;
    }
    kept.push_back(points[std::min(low, high)]);
    if (low != high) kept.push_back(points[std::max(low, high)]);
  }
  kept.push_back(points.back());
  return kept;
}

std::string draw(const Chart& chart) {
  Range xs, ys;
  for (const Curve& c : chart.curves)
    for (const Point& p : c.points)
      if (is_drawn(p)) xs.add(p.x), ys.add(p.y);
  if (xs.is_empty()) return "";
  for (const double x : chart.resumes)
    if (std::isfinite(x)) xs.add(x);
  xs.add(0);
  if (ys.low >= 0 && ys.low < 0.5 * ys.high) ys.add(0);
  const Axis x = x_axis(widened(xs)), y = y_axis(widened(ys));
  const std::string transform = text_of("matrix(", exact(x.scale), " 0 0 ", exact(y.scale), " ", exact(x.offset), " ", exact(y.offset), ")");

  std::string legend = "<b>" + escaped(chart.title) + "</b>", curves, marks;
  for (const Curve& c : chart.curves) {
    const std::string drawn = curve(c, transform);
    if (!drawn.empty() && chart.has_names && chart.curves.size() > 1) legend += text_of("<span class=\"key\" style=\"--c:var(--c", c.color, ")\">", escaped(c.name), "</span>");
    curves += drawn;
  }
  for (const double at : chart.resumes)
    if (std::isfinite(at)) marks += text_of("<path class=\"resume\" d=\"M", place(x.at(at)), " ", top, "V", height - bottom, "\"/>");
  if (!marks.empty()) legend += "<span class=\"key dashed\">resumed</span>";
  return text_of("<figure class=\"chart\"><figcaption>", legend, "</figcaption><svg viewBox=\"0 0 ", width, " ", height, "\" role=\"img\" aria-label=\"", escaped(chart.title),
                 "\" data-axis=\"epoch\" data-unit=\"", chart.is_percent ? "%" : "", "\" data-map=\"", exact(x.scale), " ", exact(x.offset), " ", exact(chart.x_per_tick), " ",
                 exact(y.scale), " ", exact(y.offset), "\">", ticks(chart, x, y), marks, curves, "<path class=\"cursor\"/></svg></figure>\n");
}

}  // namespace lockstep
