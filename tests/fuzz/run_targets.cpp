// run_targets: what a run's folder holds and later starts and `report` read: convolutions.txt, metrics.jsonl, evaluation.json.
#include <functional>
#include <limits>
#include <sstream>

#include "backends/conv_choices.hpp"
#include "base/config.hpp"
#include "base/error.hpp"
#include "fuzz/target.hpp"
#include "support/data_sets.hpp"
#include "train/evaluation.hpp"
#include "train/records.hpp"
#include "train/report/evaluated.hpp"
#include "train/report/report.hpp"

namespace lockstep::fuzz {
namespace {

const std::vector<std::string> json_words = {"{", "}", "[", "]", "\"", ",", ":", "null", "true", "1e999", "-1", "1e300", "-9223372036854775808", "18446744073709551615", "0.5", "NaN", "[[[[[[[[", "{\"a\":", "\\u0000", "\\ud800", "</script>", "\n",
                                             "\"kind\":\"train\"", "\"kind\":\"eval\"", "\"kind\":\"start\"", "\"kind\":\"phases\"", "\"step\":", "\"classes\":", "\"confusion\":", "\"mistakes\":"};

/// A run's folder that has a page; the shards of its evaluation are real.
void write_run(const std::string& metrics, const std::string& evaluation) {
  put(scratch("config.toml"), "[run]\nname = \"a\"\n");
  put(scratch("metrics.jsonl"), metrics), put(scratch("evaluation.json"), evaluation);
}

std::string page_of(const std::string& folder) {
  const std::string path = write_report(folder);
  const std::string page = read_file(path);
  if (!page.ends_with("</html>\n") && page.find("</html>") == std::string::npos) throw Fault{"the page has no end"};
  return page;
}

std::string metrics() {
  std::string lines;
  for (const Record& record : std::vector<Record>{StartRecord{.run = "a", .versions = "1", .git_hash = "b", .config = "[run]\n", .hosts = {"n1", "n2"}, .ranks = 2}, TrainRecord{.step = 10, .epoch = 0.5, .loss = 2, .top1 = 0.25, .top5 = 0.5, .learning_rate = 0.1},
                                                  TrainRecord{.step = 20, .epoch = 1, .loss = std::numeric_limits<double>::quiet_NaN(), .top1 = 0.5, .top5 = 0.75, .learning_rate = 0.1}, EvalRecord{.step = 20, .epoch = 1, .loss = 1.5, .top1 = 0.5, .top5 = 1, .images = 4},
                                                  PhaseRecord{.step = 20, .start = 1, .training = 2, .data_wait = 0.5, .evaluation = 1, .checkpoint = 0.25}})
    lines += to_line(record) + "\n";
  return lines;
}

std::string evaluation() {
  EvaluationFile file{.step = 20, .checkpoint = "step-00000020.h5", .data = "nowhere", .split = "val", .class_names = {"cat", "dog"}, .result = {}};
  file.result = {.images = 4, .loss = 1.5, .top1 = 0.5, .top5 = 1, .class_images = {2, 2}, .class_correct = {1, 1}, .confusion = {1, 1, 1, 1}, .mistakes = {{.image = 0, .label = 1, .predicted = 0, .probability = 0.75f, .loss = 2}}};
  write_evaluation(scratch(""), file);
  return read_file(scratch("evaluation.json"));
}

}  // namespace

Target choices_target() {
  return {.name = "choices",
          .seeds = {"62 3=1\tGPU, cuDNN 1: forward of a\n\tGPU, cuDNN 1: forward, with sums, of a\t0\n7\tGPU, cuDNN 1: forward of b\t4096\ndirect\tGPU, cuDNN 1: forward of c\t0\t128\n"},
          .words = {"\t", "\n", ": ", "\t-1\t", "9223372036854775807", "99999999999999999999", "direct"},
          .read = [](const std::string& bytes) {
            ConvChoices choices, again;
            choices.read(bytes);
            again.read(choices.text());
            if (again.text() != choices.text()) throw Fault{"what was read is written as something else"};
            std::istringstream lines(bytes);
            for (std::string line; std::getline(lines, line);)
              if (const std::size_t tab = line.find('\t'), colon = line.find(": ", tab == std::string::npos ? 0 : tab); tab != std::string::npos && colon != std::string::npos) {
                const ConvChoice* choice = choices.find_on_any_device(line.substr(colon + 2, line.find('\t', colon) - colon - 2));
                if (choice && (choice->workspace_bytes < 0 || choice->sum_parts < 0)) throw Fault{"a choice that no library makes"};
              }
          },
          .names = {"nothing is refused"}};
}

Target metrics_target() {
  return {.name = "metrics",
          .seeds = {metrics()},
          .words = json_words,
          .read = [](const std::string& bytes) {
            write_run(bytes, "");
            for (const Record& record : read_records(scratch("")))
              if (const std::string line = to_line(record); to_line(record_in(line).value()) != line) throw Fault{"a record reads back as another: " + line};
            if (std::hash<std::string>()(bytes) % 8 == 0) page_of(scratch(""));   // takes a hundred times as long
          },
          .names = {"metrics.jsonl"},
          .bytes_constant = 4 << 20,
          .bytes_a_byte = 256,
          .most_bytes = 1 << 15};
}

Target evaluation_target() {
  return {.name = "evaluation",
          .seeds = {evaluation()},
          .words = json_words,
          .read = [](const std::string& bytes) {
            write_run("", bytes);
            if (evaluated_sections(scratch(""), DataConfig(), nullptr).empty()) throw Fault{"nothing is said of the evaluation"};
          },
          .names = {"evaluation.json"},
          .bytes_constant = 4 << 20,
          .bytes_a_byte = 1024};                                      // a cell of the confusion matrix is some hundred bytes of page
}

}  // namespace lockstep::fuzz
