#include "train/predict/prediction_writer.hpp"

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/formatted.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

/// photo.jpg  rose 93.41 %  tulip 4.10 %
class TextWriter final : public PredictionWriter {
 public:
  explicit TextWriter(std::ostream& out) : out_(out) {}
  void row(const PredictionRow& row) override {
    out_ << on_one_line(row.file);
    for (const Guess& guess : row.guesses) out_ << "  " << on_one_line(guess.name) << " " << formatted("%.2f %%", 100 * guess.probability);
    out_ << "\n";
  }

 private:
  std::ostream& out_;
};

/// One row an image; texts in quotes where RFC 4180 wants them.
class CsvWriter final : public PredictionWriter {
 public:
  CsvWriter(std::ostream& out, std::int64_t top) : out_(out) {
    out_ << "file,label";
    for (std::int64_t i = 1; i <= top; ++i) out_ << ",class_" << i << ",probability_" << i;
    out_ << "\r\n";
  }
  void row(const PredictionRow& row) override {
    out_ << field(row.file) << "," << field(row.label);
    for (const Guess& guess : row.guesses) out_ << "," << field(guess.name) << "," << Json(guess.probability).dump();
    out_ << "\r\n";
  }

 private:
  static std::string field(const std::string& text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
    std::string quoted = "\"";
    for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
    return quoted + "\"";
  }
  std::ostream& out_;
};

/// {"images": [...], "unread": [...], ...}: the rows come as they are made, so a long list takes no memory.
class JsonWriter final : public PredictionWriter {
 public:
  explicit JsonWriter(std::ostream& out) : out_(out) { out_ << "{\"images\": ["; }
  void row(const PredictionRow& row) override {
    Json line = {{"file", row.file}, {"label", row.label.empty() ? Json() : Json(row.label)}, {"predictions", Json::array()}};
    for (const Guess& guess : row.guesses) line["predictions"].push_back({{"class", guess.name}, {"probability", guess.probability}});
    out_ << (is_first_ ? "\n" : ",\n") << text(line);
    is_first_ = false;
  }
  void finish(const PredictionSummary& s) override {
    Json unread = Json::array(), accuracy;
    for (const UnreadFile& file : s.unread) unread.push_back({{"file", file.file}, {"reason", file.reason}});
    const auto share = [&](std::int64_t right) { return static_cast<double>(right) / static_cast<double>(s.labelled); };
    if (s.labelled > 0) accuracy = {{"images", s.labelled}, {"top1", share(s.top1)}, {"top5", share(s.top5)}};
    out_ << "\n],\n\"unread\": " << text(unread) << ",\n\"accuracy\": " << text(accuracy) << ",\n\"checkpoint\": " << text(s.checkpoint) << ",\n\"model\": " << text(s.model) << "}\n";
  }

 private:
  static std::string text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
  std::ostream& out_;
  bool is_first_ = true;
};

}  // namespace

std::unique_ptr<PredictionWriter> make_prediction_writer(const std::string& format, std::ostream& out, std::int64_t top) {
  if (format == "text") return std::make_unique<TextWriter>(out);
  if (format == "csv") return std::make_unique<CsvWriter>(out, top);
  if (format == "json") return std::make_unique<JsonWriter>(out);
  fail("--format ", format, ": must be text, csv or json.");
}

}  // namespace lockstep
