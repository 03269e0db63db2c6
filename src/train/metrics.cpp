#include "train/metrics.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <optional>

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "storage/appended_file.hpp"
#include "storage/aside_file.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Whether a line of an earlier try stays when the run goes on at `step`.
bool stays(const std::string& line, std::int64_t step, std::int64_t evaluated_step) {
  const std::optional<Record> record = record_in(line);
  if (!record || std::holds_alternative<StartRecord>(*record)) return record.has_value();
  const auto* eval = std::get_if<EvalRecord>(&*record);
  const bool is_of_training = eval && eval->checkpoint.empty();
  return std::visit([](const auto& r) { return r.step; }, *record) <= (is_of_training ? std::min(step, evaluated_step) : step);
}

/// Nothing is written where nothing is taken out: a resume needs no space for it.
void take_out_later_records(const std::string& path, std::int64_t step, std::int64_t evaluated_step) {
  std::ifstream in(path);
  if (!in) return;
  std::string kept, line;
  bool is_whole = true;
  while (std::getline(in, line)) {
    const bool is_kept = stays(line, step, evaluated_step);
    if (is_kept) kept += line + "\n";
    is_whole = is_whole && is_kept && !in.eof();   // at the end of the file: a line without its end
  }
  if (!is_whole) write_whole_file(path, {kept});
}

class JsonSink final : public Sink {
 public:
  JsonSink(std::string path, Warn warn) : file_(std::move(path), std::move(warn)) {}
  void start(const StartRecord& r) override { add(r); }
  void train(const TrainRecord& r) override { add(r); }
  void eval(const EvalRecord& r) override { add(r); }
  void phases(const PhaseRecord& r) override { add(r); }
  void finish() override { file_.finish(); }

 private:
  void add(const Record& record) { file_.append(to_line(record) + "\n"); }
  AppendedFile file_;
};

std::string percent(double fraction) { return formatted("%.2f %%", 100 * fraction); }

}  // namespace

std::unique_ptr<Sink> make_json_sink(const std::string& folder, std::int64_t step, std::int64_t evaluated_step, Warn warn) {
  const std::string path = (fs::path(folder) / "metrics.jsonl").string();
  take_out_later_records(path, step, evaluated_step);
  return std::make_unique<JsonSink>(path, std::move(warn));
}

void append_eval_record(const std::string& folder, const EvalRecord& record) {
  AppendedFile file((fs::path(folder) / "metrics.jsonl").string());
  file.end_line();
  file.append(to_line(record) + "\n");
  file.finish();
}

double wall_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto s = static_cast<long long>(seconds + 0.5);
  return s >= 3600 ? formatted("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60) : formatted("%lld:%02lld", s / 60, s % 60);
}

struct Console::State {
  std::mutex mutex;
  std::optional<AppendedFile> log;
  // mpirun gives a rank a terminal as standard output even where its own goes into a file; standard error it leaves alone.
  bool is_terminal = ::isatty(STDOUT_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0, has_progress = false;
};

Console::Console(const std::string& folder) : state_(std::make_unique<State>()) {
  if (folder.empty()) return;
  state_->log.emplace((fs::path(folder) / "log").string(), [](const std::string& line) { std::cout << line << "\n" << std::flush; });
  state_->log->end_line();
}
Console::~Console() {
  if (state_->has_progress) std::cout << "\n" << std::flush;
}

void Console::say(const std::string& line) {
  const std::lock_guard lock(state_->mutex);
  std::cout.clear();                     // it may be a file on a disk that was full for a while
  if (state_->has_progress) std::cout << "\n";
  state_->has_progress = false;
  std::cout << line << "\n" << std::flush;
  if (state_->log) state_->log->append(line + "\n");
}

void Console::start(const StartRecord& r) {
  say(text_of("lockstep: run ", r.run, ", ", counted(r.ranks, "rank"), r.job.empty() ? "" : ", job " + r.job, ", ", r.versions));
}

void Console::train(const TrainRecord& r) {
  const std::string line = text_of("epoch ", formatted("%.2f", r.epoch), "/", formatted("%g", r.epochs), "  step ", r.step, "  loss ", formatted("%.4f", r.loss), "  top-1 ", percent(r.top1),
                                   "  rate ", formatted("%.3g", r.learning_rate), "  ", formatted("%.0f", r.images_per_second), " img/s (average ",
                                   formatted("%.0f", r.images_per_second_average), ")  data wait ", formatted("%.0f", 100 * r.data_wait), " %",
                                   r.skipped > 0 ? text_of("  skipped ", r.skipped) : "", "  ETA ", duration(r.seconds_left));
  if (!state_->is_terminal) return say(line);
  const std::lock_guard lock(state_->mutex);
  std::cout << "\r\033[K" << line << std::flush;
  state_->has_progress = true;
  if (state_->log) state_->log->append(line + "\n");
}

void Console::eval(const EvalRecord& r) {
  say(text_of("evaluated ", r.images, " images at step ", r.step, ": top-1 ", percent(r.top1), "  top-5 ", percent(r.top5), "  loss ", formatted("%.4f", r.loss)));
}

}  // namespace lockstep
