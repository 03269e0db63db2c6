#include "convert/ground_truth.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/error.hpp"

namespace lockstep {
namespace {

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  require(file.good(), path, ": cannot be opened");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (lines.empty() && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);   // Windows' byte order mark
    lines.push_back(line);
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  require(!lines.empty(), path, ": has no lines");
  return lines;
}

/// The file name of a path that a list may give ("val/x.JPEG").
std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

std::optional<std::int64_t> number_of(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  return {};
}

/// "n01440764 tench, Tinca tinca" names class n01440764, unless the whole line is a class.
std::string class_of_line(const std::string& line, const std::set<std::string>& classes) {
  return classes.contains(line) ? line : line.substr(0, line.find_first_of(" \t"));
}

struct Line {
  std::string image, label;                                         // image is empty where position decides
};

/// Two columns if the first column of the first line is an image.
std::vector<Line> columns_of(const std::string& path, const std::set<std::string>& images) {
  std::vector<Line> out;
  bool has_images = false;
  for (const std::string& line : lines_of(path)) {
    const std::size_t gap = line.find_first_of(" \t");
    const std::string first = base_name(line.substr(0, gap));
    if (out.empty()) has_images = gap != std::string::npos && images.contains(first);
    if (has_images) out.push_back({first, gap == std::string::npos ? "" : line.substr(line.find_first_not_of(" \t", gap))});
    else out.push_back({"", line});
  }
  return out;
}

}  // namespace

std::vector<std::int32_t> read_ground_truth(const std::vector<std::string>& images, const std::vector<std::string>& classes,
                                            const std::string& labels, const std::string& label_names) {
  const std::set<std::string> known(classes.begin(), classes.end());
  const auto index_of = [&](const std::string& name) {
    return static_cast<std::int32_t>(std::lower_bound(classes.begin(), classes.end(), name) - classes.begin());
  };
  std::vector<std::string> by_number;
  if (!label_names.empty())
    for (const std::string& line : lines_of(label_names)) {
      by_number.push_back(class_of_line(line, known));
      require(known.contains(by_number.back()), label_names, ", line ", by_number.size(), ": \"", by_number.back(), "\" is no class of the training images");
    }

  const std::vector<Line> lines = columns_of(labels, {images.begin(), images.end()});
  require(lines.size() == images.size(), labels, ": has ", lines.size(), " lines for ", images.size(), " images; it must have one for each");
  std::unordered_map<std::string, std::size_t> position;
  for (std::size_t i = 0; i < images.size(); ++i) position[images[i]] = i;
  std::vector<std::int32_t> result(images.size(), -1);
  std::int64_t plain_numbers = 0, smallest = std::ssize(classes);   // without a map
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto& [image, label] = lines[i];
    const std::string where = text_of(labels, ", line ", i + 1, ": ");
    std::size_t at = i;
    if (!image.empty()) {
      const auto found = position.find(image);
      require(found != position.end(), where, "there is no image ", image);
      at = found->second;
      require(result[at] < 0, where, image, " stands there twice");
    }
    if (const std::string name = class_of_line(label, known); known.contains(name)) {
      result[at] = index_of(name);
      continue;
    }
    const std::optional<std::int64_t> number = number_of(label);
    require(number.has_value(), where, "\"", label, "\" is neither a class of the training images nor a number");
    const std::int64_t first = by_number.empty() ? 0 : 1, count = by_number.empty() ? std::ssize(classes) : std::ssize(by_number);
    require(*number >= first && *number < first + count, where, "class number ", *number, " is not in ", first, "..", first + count - 1,
            by_number.empty() ? " (numbers count the sorted class names from 0; for ILSVRC's own IDs, which start at 1 and are not sorted, "
                                "give --val-label-names a file whose line i names class i)" : "");
    if (by_number.empty()) ++plain_numbers, smallest = std::min(smallest, *number);
    result[at] = by_number.empty() ? static_cast<std::int32_t>(*number) : index_of(by_number[static_cast<std::size_t>(*number - 1)]);
  }
  require(plain_numbers < std::ssize(lines) || smallest == 0, labels, ": no image has class number 0, so these may be ILSVRC's IDs, which start at 1 and are not sorted. "
          "Give --val-label-names a file whose line i names class i, or write class names instead of numbers");
  return result;
}

std::vector<std::string> classes_in(const std::vector<std::string>& images, const std::string& labels, const std::string& label_names) {
  std::set<std::string> names;
  if (!label_names.empty())
    for (const std::string& line : lines_of(label_names)) names.insert(class_of_line(line, {}));
  else
    for (const Line& line : columns_of(labels, {images.begin(), images.end()})) {
      require(!number_of(line.label), labels, ": numbers its classes, and there are no training images to take names from. "
              "Give --val-label-names a file whose line i names class i");
      names.insert(line.label);
    }
  require(names.size() >= 2, label_names.empty() ? labels : label_names, ": names ", names.empty() ? "no class" : "one class, " + *names.begin(), "; a classifier needs at least two classes");
  return {names.begin(), names.end()};
}

}  // namespace lockstep
