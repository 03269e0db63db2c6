#include "train/records.hpp"

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
using ReadJson = nlohmann::json;         // the ordered one takes n^2 steps for n names

Json to_json(const StartRecord& r) {
  return {{"kind", "start"}, {"step", r.step}, {"run", r.run}, {"versions", r.versions}, {"git_hash", r.git_hash}, {"hosts", r.hosts},
          {"job", r.job}, {"ranks", r.ranks}, {"rank_map", r.rank_map}, {"resumed_from", r.resumed_from}, {"config", r.config}};
}
Json to_json(const TrainRecord& r) {
  return {{"kind", "train"}, {"step", r.step}, {"epoch", r.epoch}, {"loss", r.loss}, {"top1", r.top1}, {"top5", r.top5},
          {"learning_rate", r.learning_rate}, {"images_per_second", r.images_per_second}, {"images_per_second_average", r.images_per_second_average},
          {"step_seconds", r.step_seconds}, {"data_wait", r.data_wait}, {"loss_scale", r.loss_scale}, {"skipped", r.skipped},
          {"grad_norm", r.grad_norm}, {"memory_bytes", r.memory_bytes}};
}
Json to_json(const EvalRecord& r) {
  Json line = {{"kind", "eval"}, {"step", r.step}, {"epoch", r.epoch}, {"loss", r.loss}, {"top1", r.top1}, {"top5", r.top5}, {"images", r.images}};
  if (!r.checkpoint.empty()) line["checkpoint"] = r.checkpoint, line["split"] = r.split;
  return line;
}
Json to_json(const PhaseRecord& r) {
  return {{"kind", "phases"}, {"step", r.step}, {"start", r.start}, {"training", r.training}, {"data_wait", r.data_wait}, {"evaluation", r.evaluation},
          {"checkpoint", r.checkpoint}};
}

/// The fields of a line, whatever stands in them.
struct Fields {
  const ReadJson& line;
  double number(const char* name) const {
    const auto at = line.find(name);
    return at != line.end() && at->is_number() ? at->get<double>() : std::numeric_limits<double>::quiet_NaN();
  }
  std::int64_t count(const char* name) const {
    const auto at = line.find(name);
    return at != line.end() && at->is_number_integer() ? at->get<std::int64_t>() : 0;
  }
  std::string text(const char* name) const {
    const auto at = line.find(name);
    return at != line.end() && at->is_string() ? at->get<std::string>() : "";
  }
};

StartRecord start_in(const Fields& f) {
  StartRecord r{.run = f.text("run"), .versions = f.text("versions"), .git_hash = f.text("git_hash"), .config = f.text("config"), .job = f.text("job"), .hosts = {},
                .ranks = f.count("ranks"), .step = f.count("step"), .resumed_from = f.text("resumed_from"), .rank_map = f.text("rank_map")};
  if (const auto hosts = f.line.find("hosts"); hosts != f.line.end() && hosts->is_array())
    for (const ReadJson& host : *hosts) r.hosts.push_back(host.is_string() ? host.get<std::string>() : "");
  return r;
}
TrainRecord train_in(const Fields& f) {
  return {.step = f.count("step"), .epoch = f.number("epoch"), .loss = f.number("loss"), .top1 = f.number("top1"), .top5 = f.number("top5"),
          .learning_rate = f.number("learning_rate"), .images_per_second = f.number("images_per_second"),
          .images_per_second_average = f.number("images_per_second_average"), .step_seconds = f.number("step_seconds"), .data_wait = f.number("data_wait"),
          .loss_scale = f.number("loss_scale"), .grad_norm = f.number("grad_norm"), .skipped = f.count("skipped"), .memory_bytes = f.count("memory_bytes")};
}
EvalRecord eval_in(const Fields& f) {
  return {.step = f.count("step"), .epoch = f.number("epoch"), .loss = f.number("loss"), .top1 = f.number("top1"), .top5 = f.number("top5"),
          .images = f.count("images"), .checkpoint = f.text("checkpoint"), .split = f.text("split")};
}
PhaseRecord phases_in(const Fields& f) {
  return {.step = f.count("step"), .start = f.number("start"), .training = f.number("training"), .data_wait = f.number("data_wait"),
          .evaluation = f.number("evaluation"), .checkpoint = f.number("checkpoint")};
}

}  // namespace

std::string to_line(const Record& record) {
  return std::visit([](const auto& r) { return to_json(r).dump(-1, ' ', false, Json::error_handler_t::replace); }, record);
}

std::optional<Record> record_in(const std::string& line) {
  const ReadJson json = ReadJson::parse(line, nullptr, false);
  if (!json.is_object()) return std::nullopt;            // discarded, too
  const Fields fields{json};
  const std::string kind = fields.text("kind");
  if (kind == "start") return start_in(fields);
  if (kind == "train") return train_in(fields);
  if (kind == "eval") return eval_in(fields);
  if (kind == "phases") return phases_in(fields);
  return std::nullopt;
}

std::vector<Record> read_records(const std::string& folder) {
  std::vector<Record> records;
  std::ifstream file(std::filesystem::path(folder) / "metrics.jsonl");
  for (std::string line; std::getline(file, line);)
    if (std::optional<Record> record = record_in(line)) records.push_back(std::move(*record));
  return records;
}

}  // namespace lockstep
