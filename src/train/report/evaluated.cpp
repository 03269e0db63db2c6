#include "train/report/evaluated.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "images/resize.hpp"
#include "train/evaluation.hpp"
#include "train/report/html.hpp"

namespace lockstep {
namespace {

constexpr std::size_t most_cells = 30;                   // classes of a matrix whose counts can be read; above, it is a picture
constexpr std::size_t most_pairs = 20;
constexpr std::int64_t picture_side = 160;               // larger images are made smaller

struct Pair {                                            // images of one class that were taken for another
  std::size_t label = 0, predicted = 0;
  std::int64_t images = 0;
};

struct View {
  const EvaluationFile& file;
  std::size_t outputs() const { return file.result.class_images.size(); }
  std::string name(std::size_t k) const { return k < file.class_names.size() ? escaped(file.class_names[k]) : text_of("output ", k); }
  std::int64_t count(std::size_t label, std::size_t predicted) const { return file.result.confusion[label * outputs() + predicted]; }
  double share(std::size_t label, std::size_t predicted) const { return fraction(count(label, predicted), file.result.class_images[label]); }
  bool has_matrix() const { return file.result.confusion.size() == file.class_names.size() * outputs() && outputs() > 0; }
};

std::string matrix_of_counts(const View& v) {
  std::string head = "<th></th>", rows;
  for (std::size_t k = 0; k < v.outputs(); ++k) head += "<th title=\"" + v.name(k) + "\"><div>" + v.name(k) + "</div></th>";
  for (std::size_t label = 0; label < v.file.class_names.size(); ++label) {
    rows += "<tr><th class=\"name\" title=\"" + v.name(label) + "\">" + v.name(label) + "</th>";
    for (std::size_t k = 0; k < v.outputs(); ++k) {
      const double strength = std::sqrt(v.share(label, k));                       // few mistakes are to be seen too
      const std::string color = text_of(label == k ? "37,110,180" : "200,80,40", ",", exact(std::round(100 * strength) / 100));
      rows += text_of("<td", strength > 0.6 ? " class=\"strong\"" : "", " style=\"background:rgba(", color, ")\" title=\"", v.name(label), " taken for ", v.name(k), ": ",
                      v.count(label, k), " images\">", v.count(label, k) > 0 ? text_of(v.count(label, k)) : "", "</td>");
    }
    rows += "</tr>\n";
  }
  return "<div class=\"scroll\"><table class=\"matrix\"><thead><tr>" + head + "</tr></thead><tbody>\n" + rows + "</tbody></table></div>\n";
}

std::string matrix_as_picture(const View& v) {
  const std::size_t rows = v.file.class_names.size(), columns = v.outputs();
  std::vector<std::uint8_t> levels(rows * columns);
  for (std::size_t label = 0; label < rows; ++label)
    for (std::size_t k = 0; k < columns; ++k) levels[label * columns + k] = static_cast<std::uint8_t>(std::lround(255 * std::sqrt(v.share(label, k))));
  return "<img class=\"heat\" alt=\"confusion matrix\" src=\"" + heat_uri(levels, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)) + "\">\n";
}

std::vector<Pair> pairs_of(const View& v) {
  std::vector<Pair> pairs;
  for (std::size_t label = 0; label < v.file.class_names.size(); ++label)
    for (std::size_t k = 0; k < v.outputs(); ++k)
      if (label != k && v.count(label, k) > 0) pairs.push_back({label, k, v.count(label, k)});
  std::ranges::stable_sort(pairs, [](const Pair& a, const Pair& b) { return a.images > b.images; });
  return pairs;
}

std::string confusion(const View& v, const std::vector<Pair>& pairs) {
  if (!v.has_matrix()) return "";
  std::string rows;
  for (std::size_t i = 0; i < std::min(most_pairs, pairs.size()); ++i)
    rows += text_of("<tr><td class=\"name\">", v.name(pairs[i].label), "</td><td class=\"name\">", v.name(pairs[i].predicted), "</td><td>", pairs[i].images, "</td><td>",
                    shown_percent(v.share(pairs[i].label, pairs[i].predicted)), "</td></tr>\n");
  const std::string table = rows.empty() ? "<p>No image was taken for another class.</p>\n"
                                         : "<div class=\"scroll\"><table><thead><tr><th class=\"name\">class</th><th class=\"name\">taken for</th><th>images</th><th>of its class</th></tr></thead><tbody>\n" + rows + "</tbody></table></div>\n";
  return section("Confusion", "<p class=\"soft\">A row is a class, a column what its images were taken for; the stronger the colour, the larger the share of the row.</p>\n<div class=\"columns\"><div>" +
                                  (v.outputs() <= most_cells ? matrix_of_counts(v) : matrix_as_picture(v)) + "</div><div>" + table + "</div></div>\n");
}

std::string classes(const View& v, const std::vector<Pair>& pairs) {
  const Evaluation& e = v.file.result;
  std::vector<std::size_t> order(v.file.class_names.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto accuracy = [&](std::size_t k) { return fraction(e.class_correct[k], e.class_images[k]); };
  std::erase_if(order, [&](std::size_t k) { return e.class_images[k] == 0; });
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return accuracy(a) < accuracy(b); });
  std::vector<const Pair*> most(v.outputs(), nullptr);
  for (const Pair& pair : pairs)
    if (!most[pair.label]) most[pair.label] = &pair;
  std::string rows;
  for (const std::size_t k : order)
    rows += text_of("<tr><td class=\"name\">", v.name(k), "</td><td>", e.class_images[k], "</td><td>", shown_percent(accuracy(k)), "<span class=\"track\"><span class=\"bar\" style=\"width:",
                    exact(std::round(100 * accuracy(k))), "%\"></span></span></td><td class=\"name\">", most[k] ? text_of(v.name(most[k]->predicted), " (", most[k]->images, ")") : "", "</td></tr>\n");
  return section("Classes", "<div class=\"scroll\"><table><thead><tr><th class=\"name\">class, worst first</th><th>images</th><th>top-1</th><th class=\"name\">most often taken for</th></tr></thead><tbody>\n" +
                                rows + "</tbody></table></div>\n");
}

std::string picture(const Dataset& images, const Mistake& m) {
  require(m.image >= 0 && m.image < images.size(), "no such image");
  const ImageRecord& record = images.records()[static_cast<std::size_t>(m.image)];
  require(record.label == m.label, "other images than those that were evaluated");
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(record.bytes()));
  images.read(m.image, pixels.data());
  std::int64_t height = record.height, width = record.width;
  const std::int64_t longer = std::max(height, width);
  const std::string kind = longer < picture_side / 2 ? "small" : "";
  if (longer > picture_side) {
    const auto smaller = [&](std::int64_t side) { return std::max<std::int64_t>(1, side * picture_side / longer); };
    Resize resize(height, width, static_cast<double>(height), static_cast<double>(width), smaller(height), smaller(width));
    for (std::int64_t y = 0; y < height; ++y) resize.add_row(pixels.data() + 3 * y * width);
    pixels = resize.result(), height = smaller(height), width = smaller(width);
  }
  const std::string name = escaped(images.name_of(m.image));
  return "<img class=\"" + kind + "\" alt=\"" + name + "\" title=\"" + name + "\" src=\"" + picture_uri(pixels, height, width) + "\">";
}

std::string mistakes(const View& v, const Dataset* images) {
  std::string figures, missing;
  for (const Mistake& m : v.file.result.mistakes) {
    std::string shown_picture;
    try {
      if (images) shown_picture = picture(*images, m);
    } catch (const Error& error) {
      missing = error.what();
    }
    figures += text_of("<figure>", shown_picture, "<figcaption><b>", v.name(static_cast<std::size_t>(m.label)), "</b>, taken for <b>", v.name(static_cast<std::size_t>(m.predicted)), "</b> with ",
                       shown_percent(m.probability), "; loss ", shown(m.loss), "; image ", m.image, "</figcaption></figure>\n");
  }
  if (figures.empty()) return "";
  if (!images) missing = v.file.data + " has no such shards any more";
  return section("Worst mistakes", (missing.empty() ? "" : "<p class=\"soft\">Without pictures: " + escaped(missing) + "</p>\n") + "<div class=\"pictures\">" + figures + "</div>\n");
}

}  // namespace

std::string evaluated_sections(const std::string& folder, const DataConfig& data, const Dataset* images) {
  const std::optional<EvaluationFile> file = read_evaluation(folder);
  if (!file) return section("Evaluation", "<p>This run was not evaluated yet, or its data set has no split <code>" + escaped(data.eval_split) + "</code>.</p>\n");
  const View view{*file};
  const bool is_open = images && images->header().split == file->split && file->data == data.path;
  std::unique_ptr<Dataset> opened;
  if (!is_open) try {
      opened = std::make_unique<Dataset>(file->data, file->split);
    } catch (const Error&) {             // moved, or damaged since
    }
  const std::vector<Pair> pairs = view.has_matrix() ? pairs_of(view) : std::vector<Pair>();
  const Evaluation& e = file->result;
  const std::string what = text_of("<p>Split <code>", escaped(file->split), "</code> at step ", file->step, file->checkpoint.empty() ? "" : ", checkpoint <code>" + escaped(file->checkpoint) + "</code>", ": ",
                                   e.images, " images, top-1 ", shown_percent(e.top1), ", top-5 ", shown_percent(e.top5), ", loss ", shown(e.loss), ".</p>\n");
  return section("Evaluation", what) + confusion(view, pairs) + classes(view, pairs) + mistakes(view, is_open ? images : opened.get());
}

}  // namespace lockstep
