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
#include "train/run_folder.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

std::string path_in(const std::string& folder) { return (std::filesystem::path(folder) / "evaluation.json").string(); }

double number_in(const Json& value) { return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN(); }   // null: it was not finite

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

EvaluationFile evaluation_in(const Json& json) {
  EvaluationFile file{.step = json.at("step"), .checkpoint = json.at("checkpoint"), .data = json.value("data", ""), .split = json.value("split", ""), .class_names = {}, .result = {}};
  Evaluation& e = file.result;
  e.images = json.at("images"), e.loss = number_in(json.at("loss")), e.top1 = json.at("top1"), e.top5 = json.at("top5");
  for (const Json& line : json.at("classes")) {
    file.class_names.push_back(line.at("name"));
    e.class_images.push_back(line.at("images"));
    e.class_correct.push_back(std::llround(line.at("top1").get<double>() * static_cast<double>(e.class_images.back())));
  }
  for (const Json& row : json.value("confusion", Json::array())) {
    e.class_images.resize(row.size()), e.class_correct.resize(row.size());   // a network may have more outputs than there are classes
    for (const Json& count : row) e.confusion.push_back(count);
  }
  for (const Json& m : json.value("mistakes", Json::array()))
    e.mistakes.push_back({.image = m.at("image"), .label = m.at("label"), .predicted = m.at("predicted"), .probability = static_cast<float>(number_in(m.at("probability"))),
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
    table += formatted("%6.2f %% %8lld  ", 100 * accuracy(order[i]), static_cast<long long>(e.class_images[order[i]])) + class_names[order[i]] + "\n";
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
  write_aside(path_in(folder), json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<EvaluationFile> read_evaluation(const std::string& folder) {
  std::ifstream file(path_in(folder));
  const Json json = file ? Json::parse(file, nullptr, false) : Json();
  if (!json.is_object()) return std::nullopt;
  try {
    return evaluation_in(json);
  } catch (const Json::exception&) {     // another program's, or another version's
    return std::nullopt;
  }
}

}  // namespace lockstep
