#include "train/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "storage/aside_file.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
using ReadJson = nlohmann::json;         // the ordered one takes n^2 steps for n names
constexpr std::size_t most_outputs = 1000;   // of a network whose confusion matrix is kept

struct NoEvaluation {};                  // JSON that holds something else

std::string path_in(const std::string& folder) { return (std::filesystem::path(folder) / "evaluation.json").string(); }

double number_in(const ReadJson& value) { return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN(); }   // null: it was not finite

/// A whole number from 0 to 2^62: a double beyond int64 could not be made one.
std::int64_t count_in(const ReadJson& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{1} << 62 ? value.get<std::int64_t>() : throw NoEvaluation();
}
std::int32_t class_in(const ReadJson& value) {
  const std::int64_t index = count_in(value);
  return index <= std::numeric_limits<std::int32_t>::max() ? static_cast<std::int32_t>(index) : throw NoEvaluation();
}
double fraction_in(const ReadJson& value) {
  const double fraction = value.get<double>();
  return fraction >= 0 && fraction <= 1 ? fraction : throw NoEvaluation();
}

/// A loss that is no number is the worst; of equals the first image comes first.
bool is_worse(const Mistake& a, const Mistake& b) {
  const auto key = [](const Mistake& m) { return std::tuple(!std::isnan(m.loss), std::isnan(m.loss) ? 0 : -m.loss, m.image); };
  return key(a) < key(b);
}

void keep_worst(std::vector<Mistake>& mistakes) {
  const std::size_t kept = std::min(worst_mistakes, mistakes.size());
  std::partial_sort(mistakes.begin(), mistakes.begin() + static_cast<std::ptrdiff_t>(kept), mistakes.end(), is_worse);
  mistakes.resize(kept);
}

EvaluationFile evaluation_in(const ReadJson& json) {
  EvaluationFile file{.step = count_in(json.at("step")), .checkpoint = json.at("checkpoint"), .data = json.value("data", ""), .split = json.value("split", ""), .class_names = {}, .result = {}};
  Evaluation& e = file.result;
  e.images = count_in(json.at("images")), e.loss = number_in(json.at("loss")), e.top1 = fraction_in(json.at("top1")), e.top5 = fraction_in(json.at("top5"));
  for (const ReadJson& line : json.at("classes")) {
    file.class_names.push_back(line.at("name"));
    e.class_images.push_back(count_in(line.at("images")));
    e.class_correct.push_back(std::llround(fraction_in(line.at("top1")) * static_cast<double>(e.class_images.back())));
  }
  const ReadJson rows = json.value("confusion", ReadJson::array());
  if (!rows.empty()) {                   // a network may have more outputs than there are classes, never fewer
    const std::size_t classes = file.class_names.size(), outputs = rows.front().size();
    if (!rows.is_array() || rows.size() != classes || outputs < classes || outputs > most_outputs) throw NoEvaluation();
    e.class_images.resize(outputs), e.class_correct.resize(outputs);
  }
  for (const ReadJson& row : rows) {
    if (!row.is_array() || row.size() != e.class_images.size()) throw NoEvaluation();
    for (const ReadJson& count : row) e.confusion.push_back(count_in(count));
  }
  for (const ReadJson& m : json.value("mistakes", ReadJson::array()))
    e.mistakes.push_back({.image = count_in(m.at("image")), .label = class_in(m.at("label")), .predicted = class_in(m.at("predicted")), .probability = static_cast<float>(number_in(m.at("probability"))),
                          .loss = static_cast<float>(number_in(m.at("loss")))});
  return file;
}

}  // namespace

double fraction(std::int64_t part, std::int64_t whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0; }

std::vector<Mistake> worst_of_all(Communicator& comm, std::vector<Mistake> mistakes) {
  keep_worst(mistakes);
  const std::string own(reinterpret_cast<const char*>(mistakes.data()), mistakes.size() * sizeof(Mistake));
  mistakes.clear();
  for (const std::string& bytes : comm.gather(own)) {
    const std::size_t before = mistakes.size();
    mistakes.resize(before + bytes.size() / sizeof(Mistake));
    std::memcpy(mistakes.data() + before, bytes.data(), bytes.size());
  }
  keep_worst(mistakes);
  return mistakes;
}

std::string class_table(const Evaluation& e, const std::vector<std::string>& class_names, std::size_t lines) {
  std::vector<std::size_t> order(class_names.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto accuracy = [&](std::size_t i) { return fraction(e.class_correct[i], e.class_images[i]); };
  std::erase_if(order, [&](std::size_t i) { return e.class_images[i] == 0; });
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return accuracy(a) < accuracy(b); });
  std::string table = "  top-1    images  class\n";
  for (std::size_t i = 0; i < std::min(lines, order.size()); ++i)
    table += formatted("%6.2f %% %8lld  ", 100 * accuracy(order[i]), static_cast<long long>(e.class_images[order[i]])) + on_one_line(class_names[order[i]]) + "\n";
  if (order.size() > lines) table += text_of("  ... and ", order.size() - lines, " classes that did better (evaluation.json has all)\n");
  return table;
}

void write_evaluation(const std::string& folder, const EvaluationFile& file) {
  const Evaluation& e = file.result;
  Json json = {{"step", file.step}, {"checkpoint", file.checkpoint}, {"data", file.data}, {"split", file.split}, {"images", e.images},
               {"loss", e.loss}, {"top1", e.top1}, {"top5", e.top5}};
  for (std::size_t i = 0; i < file.class_names.size(); ++i)
    json["classes"].push_back({{"name", file.class_names[i]}, {"images", e.class_images[i]}, {"top1", fraction(e.class_correct[i], e.class_images[i])}});
  const std::size_t classes = e.class_images.size();
  for (std::size_t i = 0; i < file.class_names.size() && !e.confusion.empty(); ++i)
    json["confusion"].push_back(std::vector<std::int64_t>(e.confusion.begin() + static_cast<std::ptrdiff_t>(i * classes), e.confusion.begin() + static_cast<std::ptrdiff_t>((i + 1) * classes)));
  json["mistakes"] = Json::array();
  for (const Mistake& m : e.mistakes)
    json["mistakes"].push_back({{"image", m.image}, {"label", m.label}, {"predicted", m.predicted}, {"probability", m.probability}, {"loss", m.loss}});
  write_whole_file(path_in(folder), {json.dump(1, ' ', false, Json::error_handler_t::replace), "\n"});
}

std::optional<EvaluationFile> read_evaluation(const std::string& folder) {
  std::ifstream file(path_in(folder));
  const ReadJson json = file ? ReadJson::parse(file, nullptr, false) : ReadJson();
  if (!json.is_object()) return std::nullopt;
  try {
    return evaluation_in(json);
  } catch (const ReadJson::exception&) {     // another program's, or another version's
  } catch (const NoEvaluation&) {
  }
  return std::nullopt;
}

}  // namespace lockstep
