// The page of one run: key figures, curves, the last evaluation, time by phase, what it was run with.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "storage/aside_file.hpp"
#include "train/metrics.hpp"
#include "train/report/chart.hpp"
#include "train/report/evaluated.hpp"
#include "train/report/html.hpp"
#include "train/report/report.hpp"
#include "train/run_folder.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t log_lines = 60;

std::string tile(const std::string& figure, const std::string& meaning) { return "<div class=\"tile\"><b>" + figure + "</b><span>" + meaning + "</span></div>\n"; }

std::string header(const RunHistory& run) {
  const Config& c = run.config;
  std::string tiles;
  if (!run.evals.empty()) {
    const EvalRecord& best = *std::ranges::max_element(run.evals, {}, [](const EvalRecord& r) { return std::isnan(r.top1) ? -1 : r.top1; });
    const EvalRecord& last = run.evals.back();
    tiles += tile(shown_percent(best.top1), text_of("best top-1, step ", best.step));
    tiles += tile(shown_percent(last.top1), text_of("last top-1, ", last.images, " images"));
    tiles += tile(shown(last.loss), "last evaluated loss");
  }
  if (!run.train.empty()) {
    const TrainRecord& last = run.train.back();
    tiles += tile(shown(last.epoch, 4) + " of " + shown(static_cast<double>(c.run.epochs), 6), text_of("epochs; step ", last.step));
    tiles += tile(shown(last.loss), "last training loss");
    tiles += tile(shown(last.images_per_second_average), "images/s since it last started");
    if (last.memory_bytes > 0) tiles += tile(shown(static_cast<double>(last.memory_bytes) / (1 << 20), 4) + " MiB", "memory of a rank");
  }
  if (!run.phases.empty()) tiles += tile(duration(total_seconds(run.seconds())), "in all");
  return "<h1>" + escaped(c.run.name) + "</h1>\n<p class=\"soft\">" + escaped(c.model.name) + ", " + escaped(c.data.path) + ", " +
         (run.starts.empty() ? "" : counted(run.starts.back().ranks, "rank") + ", ") + escaped(c.precision) + "</p>\n<div class=\"tiles\">" + tiles + "</div>\n";
}

template <class Record, class Value>
Curve curve_of(const std::vector<Record>& records, const char* name, int color, Value value) {
  Curve curve{name, color, {}};
  for (const Record& r : records) curve.points.push_back({static_cast<double>(r.step), value(r)});
  curve.points = decimated(std::move(curve.points));
  return curve;
}

std::string curves(const RunHistory& run) {
  std::vector<double> resumes;
  for (const StartRecord& start : run.starts)
    if (start.step > 0) resumes.push_back(static_cast<double>(start.step));
  const auto chart = [&](const char* title, bool is_percent, std::vector<Curve> of) {
    return draw({.title = title, .is_percent = is_percent, .curves = std::move(of), .resumes = resumes, .x_per_tick = run.steps_per_epoch()});
  };
  std::string all = chart("Loss", false, {curve_of(run.train, "train", 0, [](const TrainRecord& r) { return r.loss; }), curve_of(run.evals, "eval", 1, [](const EvalRecord& r) { return r.loss; })});
  all += chart("Accuracy", true, {curve_of(run.train, "train top-1", 0, [](const TrainRecord& r) { return r.top1; }), curve_of(run.evals, "eval top-1", 1, [](const EvalRecord& r) { return r.top1; }),
                                  curve_of(run.evals, "eval top-5", 2, [](const EvalRecord& r) { return r.top5; })});
  all += chart("Learning rate", false, {curve_of(run.train, "learning rate", 3, [](const TrainRecord& r) { return r.learning_rate; })});
  all += chart("Throughput, images/s", false, {curve_of(run.train, "images/s", 5, [](const TrainRecord& r) { return r.images_per_second; })});
  all += chart("Time spent waiting for data", true, {curve_of(run.train, "data wait", 4, [](const TrainRecord& r) { return r.data_wait; })});
  all += chart("Norm of the gradients", false, {curve_of(run.train, "gradient norm", 6, [](const TrainRecord& r) { return r.grad_norm; })});
  if (run.config.precision == "fp16") all += chart("Loss scale", false, {curve_of(run.train, "loss scale", 7, [](const TrainRecord& r) { return r.loss_scale; })});
  return section("Curves", all.empty() ? "<p>Nothing was recorded yet.</p>\n" : "<div class=\"charts\">" + all + "</div>\n");
}

std::string time_by_phase(const RunHistory& run) {
  const PhaseRecord s = run.seconds();
  const double all = total_seconds(s);
  if (!(all > 0)) return section("Time by phase", "<p>Times are kept at each evaluation and at the end; this run has had neither yet.</p>\n");
  const std::pair<const char*, double> parts[] = {{"training", s.training}, {"wait for data", s.data_wait}, {"evaluation", s.evaluation}, {"checkpoints", s.checkpoint},
                                                  {"start, up to the first step", s.start}};
  std::string stack, rows;
  int color = 0;
  for (const auto& [name, seconds] : parts) {
    stack += text_of("<div style=\"--c:var(--c", color, ");width:", exact(std::round(1e4 * seconds / all) / 100), "%\" title=\"", name, "\"></div>");
    rows += text_of("<tr><td class=\"name\"><span class=\"key\" style=\"--c:var(--c", color, ")\">", name, "</span></td><td>", shown(seconds), " s</td><td>", shown_percent(seconds / all), "</td></tr>\n");
    ++color;
  }
  return section("Time by phase", text_of("<div class=\"stack\">", stack, "</div><table><tbody>\n", rows, "<tr><td class=\"name\">in all, up to step ", s.step, ", over ",
                                          counted(std::ssize(run.starts), "start"), "</td><td>", shown(all), " s</td><td></td></tr></tbody></table>\n"));
}

std::string configuration(const RunHistory& run) {
  std::string rows;
  for (const Difference& d : differences(Config{}, run.config))
    rows += "<tr><td class=\"name\"><code>" + escaped(d.key) + "</code></td><td class=\"name\"><code>" + escaped(d.after) + "</code></td><td class=\"name soft\"><code>" + escaped(d.before) + "</code></td></tr>\n";
  return section("Configuration", "<table><thead><tr><th class=\"name\">differs from the default</th><th class=\"name\">value</th><th class=\"name\">default</th></tr></thead><tbody>\n" + rows +
                                      "</tbody></table>\n<details><summary>All keys</summary><pre>" + escaped(to_toml(run.config)) + "</pre></details>\n");
}

std::string starts(const RunHistory& run) {
  if (run.starts.empty()) return "";
  std::string rows;
  for (const StartRecord& s : run.starts)
    rows += text_of("<tr><td>", s.step, "</td><td>", s.ranks, "</td><td class=\"name\">", escaped(s.job), "</td><td class=\"name\">", escaped(s.versions), "</td><td class=\"name\"><code>", escaped(s.git_hash),
                    "</code></td><td class=\"name\">", escaped(s.resumed_from), "</td></tr>\n");
  const StartRecord& last = run.starts.back();
  std::string map = last.rank_map;
  if (map.empty())                       // of an earlier version
    for (std::size_t i = 0; i < last.hosts.size(); ++i) map += text_of("rank ", i, ": ", last.hosts[i], "\n");
  return section("Ranks and versions", "<div class=\"scroll\"><table><thead><tr><th>from step</th><th>ranks</th><th class=\"name\">job</th><th class=\"name\">versions</th><th class=\"name\">git</th><th class=\"name\">resumed from</th></tr></thead><tbody>\n" +
                                           rows + "</tbody></table></div>\n<pre>" + escaped(map) + "</pre>\n");
}

std::string log_end(const std::string& folder) {
  std::ifstream file(fs::path(folder) / "log");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(std::move(line));
    if (lines.size() > 2 * log_lines) lines.erase(lines.begin(), lines.begin() + log_lines);
  }
  if (lines.empty()) return "";
  std::string text;
  for (std::size_t i = lines.size() > log_lines ? lines.size() - log_lines : 0; i < lines.size(); ++i) text += lines[i] + "\n";
  return section("Log", "<details><summary>Its last lines</summary><pre>" + escaped(text) + "</pre></details>\n");
}

}  // namespace

std::string write_report(const std::string& folder, const Dataset* evaluated) {
  const RunHistory run = read_history(folder);
  const std::string path = (fs::path(folder) / "report.html").string();
  write_whole_file(path, {page(run.config.run.name, header(run) + curves(run) + evaluated_sections(folder, run.config.data, evaluated) + time_by_phase(run) + configuration(run) + starts(run) + log_end(folder))});
  return path;
}

}  // namespace lockstep
