// The page of several runs: groups with mean and spread over seeds, the keys that differ, curves over one another, every run by itself.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "train/metrics.hpp"
#include "train/report/chart.hpp"
#include "train/report/html.hpp"
#include "train/report/report.hpp"

namespace lockstep {
namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t colors = 8, most_points_in_all = 24000;

struct Group {
  std::vector<const RunHistory*> runs;
  std::string name;
};

struct Figure {
  const char* name;
  bool is_percent;
  double (*of)(const RunHistory&);       // NaN: the run has none
};
double best_top1(const RunHistory& run) {
  double best = none;
  for (const EvalRecord& r : run.evals) best = std::fmax(best, r.top1);
  return best;
}
constexpr Figure figures[] = {
    {"last top-1", true, [](const RunHistory& run) { return run.evals.empty() ? none : run.evals.back().top1; }},
    {"best top-1", true, best_top1},
    {"last top-5", true, [](const RunHistory& run) { return run.evals.empty() ? none : run.evals.back().top5; }},
    {"last evaluated loss", false, [](const RunHistory& run) { return run.evals.empty() ? none : run.evals.back().loss; }},
    {"last training loss", false, [](const RunHistory& run) { return run.train.empty() ? none : run.train.back().loss; }},
    {"images/s", false, [](const RunHistory& run) { return run.train.empty() ? none : run.train.back().images_per_second_average; }},
};

std::string figure_text(const Figure& figure, double value) { return figure.is_percent ? shown_percent(value) : shown(value, 5); }

/// The configuration without what tells the runs of a group apart.
Config of_group(Config config) {
  config.run.seed = 0, config.run.name = "", config.run.outputs = "", config.run.resume = "";
  return config;
}

/// Keys that are not equal in all runs, in order.
std::vector<std::string> differing_keys(const std::vector<const RunHistory*>& runs) {
  std::vector<std::string> keys;
  for (const RunHistory* run : runs)
    for (const Difference& d : differences(of_group(runs[0]->config), of_group(run->config)))
      if (std::ranges::count(keys, d.key) == 0) keys.push_back(d.key);
  return keys;
}

/// What a key holds in each run; differences() names the text of values.
std::string value_of(const Config& config, const std::string& key) {
  for (const Difference& d : differences(Config{}, config))
    if (d.key == key) return d.after;
  return "";
}

std::vector<Group> groups_of(const std::vector<RunHistory>& runs) {
  std::vector<Group> groups;
  std::map<std::string, std::size_t> places;
  std::vector<const RunHistory*> firsts;
  for (const RunHistory& run : runs) {
    const auto [at, is_new] = places.try_emplace(to_toml(of_group(run.config)), groups.size());
    if (is_new) groups.emplace_back(), firsts.push_back(&run);
    groups[at->second].runs.push_back(&run);
  }
  const std::vector<std::string> keys = differing_keys(firsts);
  for (Group& group : groups) {
    for (const std::string& key : keys) {
      const std::string value = value_of(group.runs[0]->config, key);
      group.name += (group.name.empty() ? "" : ", ") + key + " = " + (value.empty() ? "default" : value);
    }
    if (group.name.empty()) group.name = group.runs[0]->config.run.name;
  }
  return groups;
}

/// Mean ± standard deviation of a sample, and the range.
std::string spread(const Figure& figure, const Group& group) {
  std::vector<double> values;
  for (const RunHistory* run : group.runs)
    if (const double v = figure.of(*run); std::isfinite(v)) values.push_back(v);
  if (values.empty()) return "–";
  const auto n = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double v : values) mean += v / n;
  for (const double v : values) squares += (v - mean) * (v - mean);
  if (values.size() == 1) return figure_text(figure, mean);
  const double deviation = std::sqrt(squares / (n - 1));
  const auto [low, high] = std::ranges::minmax(values);
  const std::string by = figure.is_percent ? shown(100 * deviation, 3) : shown(deviation, 3);
  return figure_text(figure, mean) + " ± " + by + "<br><span class=\"soft\">" + figure_text(figure, low) + " to " + figure_text(figure, high) + "</span>" +
         (values.size() < group.runs.size() ? text_of("<br><span class=\"soft\">of ", values.size(), " runs</span>") : "");
}

std::string key_of(std::size_t group) { return text_of("<span class=\"key\" style=\"--c:var(--c", group % colors, ")\">"); }

std::string group_table(const std::vector<Group>& groups) {
  std::string head, rows;
  for (const Figure& figure : figures) head += text_of("<th>", figure.name, "</th>");
  for (std::size_t g = 0; g < groups.size(); ++g) {
    rows += "<tr><td class=\"name\">" + key_of(g) + escaped(groups[g].name) + "</span></td><td>" + text_of(groups[g].runs.size()) + "</td>";
    for (const Figure& figure : figures) rows += "<td>" + spread(figure, groups[g]) + "</td>";
    rows += "</tr>\n";
  }
  return section("Groups", "<p class=\"soft\">Runs that differ in run.seed and run.name alone are one group: mean ± standard deviation, lowest to highest.</p>\n<div class=\"scroll\"><table><thead><tr><th class=\"name\">group</th><th>runs</th>" +
                               head + "</tr></thead><tbody>\n" + rows + "</tbody></table></div>\n");
}

std::string run_table(const std::vector<Group>& groups) {
  std::string head, rows;
  for (const Figure& figure : figures) head += text_of("<th>", figure.name, "</th>");
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const RunHistory* run : groups[g].runs) {
      rows += "<tr><td class=\"name\" title=\"" + escaped(run->folder) + "\">" + key_of(g) + escaped(run->config.run.name) + "</span></td><td>" + text_of(run->config.run.seed, "</td><td>", run->starts.empty() ? 0 : run->starts.back().ranks) + "</td><td>" +
              (run->train.empty() ? "–" : shown(run->train.back().epoch)) + "</td>";
      for (const Figure& figure : figures) rows += "<td>" + figure_text(figure, figure.of(*run)) + "</td>";
      rows += "<td>" + (run->phases.empty() ? "–" : duration(total_seconds(run->seconds()))) + "</td></tr>\n";
    }
  return section("Runs", "<div class=\"scroll\"><table><thead><tr><th class=\"name\">run</th><th>seed</th><th>ranks</th><th>epochs</th>" + head + "<th>time</th></tr></thead><tbody>\n" + rows + "</tbody></table></div>\n");
}

std::string key_table(const std::vector<Group>& groups) {
  std::vector<const RunHistory*> firsts;
  for (const Group& group : groups) firsts.push_back(group.runs[0]);
  const std::vector<std::string> keys = differing_keys(firsts);
  if (keys.empty()) return section("Differing keys", "<p>None but run.seed and run.name.</p>\n");
  std::string head, rows;
  for (std::size_t g = 0; g < groups.size(); ++g) head += "<th class=\"name\">" + key_of(g) + text_of("group ", g + 1) + "</span></th>";
  for (const std::string& key : keys) {
    rows += "<tr><td class=\"name\"><code>" + escaped(key) + "</code></td>";
    for (const RunHistory* run : firsts) {
      const std::string value = value_of(run->config, key);
      rows += "<td class=\"name\"><code>" + (value.empty() ? "<span class=\"soft\">default</span>" : escaped(value)) + "</code></td>";
    }
    rows += "</tr>\n";
  }
  return section("Differing keys", "<div class=\"scroll\"><table><thead><tr><th class=\"name\">key</th>" + head + "</tr></thead><tbody>\n" + rows + "</tbody></table></div>\n");
}

std::string curves(const std::vector<Group>& groups, std::size_t runs) {
  const std::size_t most = std::clamp(most_points_in_all / runs, std::size_t{200}, most_points);
  const auto overlaid = [&](const char* title, bool is_percent, const auto& records, auto value) {
    Chart chart{.title = title, .is_percent = is_percent, .curves = {}, .has_names = runs <= colors};
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (const RunHistory* run : groups[g].runs) {
        Curve curve{run->config.run.name, static_cast<int>(g % colors), {}};
        for (const auto& r : run->*records) curve.points.push_back({r.epoch, value(r)});
        curve.points = decimated(std::move(curve.points), most);
        chart.curves.push_back(std::move(curve));
      }
    return draw(chart);
  };
  std::string all = overlaid("Evaluated top-1", true, &RunHistory::evals, [](const EvalRecord& r) { return r.top1; });
  all += overlaid("Evaluated loss", false, &RunHistory::evals, [](const EvalRecord& r) { return r.loss; });
  all += overlaid("Training loss", false, &RunHistory::train, [](const TrainRecord& r) { return r.loss; });
  all += overlaid("Training top-1", true, &RunHistory::train, [](const TrainRecord& r) { return r.top1; });
  all += overlaid("Learning rate", false, &RunHistory::train, [](const TrainRecord& r) { return r.learning_rate; });
  all += overlaid("Throughput, images/s", false, &RunHistory::train, [](const TrainRecord& r) { return r.images_per_second; });
  return section("Curves", all.empty() ? "<p>Nothing was recorded yet.</p>\n" : "<div class=\"charts\">" + all + "</div>\n");
}

}  // namespace

std::string comparison_page(const std::vector<std::string>& folders) {
  std::vector<RunHistory> runs;
  for (const std::string& folder : folders) runs.push_back(read_history(folder));
  const std::vector<Group> groups = groups_of(runs);
  return page(text_of("lockstep: ", counted(std::ssize(runs), "run"), " compared"),
              text_of("<h1>", counted(std::ssize(runs), "run"), " in ", counted(std::ssize(groups), "group"), "</h1>\n") + group_table(groups) + curves(groups, runs.size()) + key_table(groups) + run_table(groups));
}

}  // namespace lockstep
