#include "train/metrics.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>

#include "base/error.hpp"
#include "base/formatted.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Appends by one write, so that a killed run leaves no half line and two programs do not mix.
void append_line(const std::string& path, const std::string& line) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  require(descriptor >= 0, path, " cannot be opened: ", std::strerror(errno), ". Check its permissions and free space.");
  const std::string text = line + "\n";
  const ssize_t written = ::write(descriptor, text.data(), text.size());
  const int reason = errno;
  ::close(descriptor);
  require(written == static_cast<ssize_t>(text.size()), path, " cannot be written: ", written < 0 ? std::strerror(reason) : "the disk is full", ". Free some space.");
}

/// Whether a line of an earlier try stays when the run goes on at `step`.
bool stays(const std::string& line, std::int64_t step, std::int64_t evaluated_step) {
  const std::optional<Record> record = record_in(line);
  if (!record || std::holds_alternative<StartRecord>(*record)) return record.has_value();
  const auto* eval = std::get_if<EvalRecord>(&*record);
  const bool is_of_training = eval && eval->checkpoint.empty();
  return std::visit([](const auto& r) { return r.step; }, *record) <= (is_of_training ? std::min(step, evaluated_step) : step);
}

void take_out_later_records(const std::string& path, std::int64_t step, std::int64_t evaluated_step) {
  std::ifstream in(path);
  if (!in) return;
  std::string kept, line;
  while (std::getline(in, line))
    if (stays(line, step, evaluated_step)) kept += line + "\n";
  const std::string temporary = path + ".partial";
  std::ofstream out(temporary, std::ios::trunc);
  out << kept << std::flush;
  require(out.good(), temporary, " cannot be written. Check permissions and free space.");
  fs::rename(temporary, path);
}

class JsonSink final : public Sink {
 public:
  explicit JsonSink(std::string path) : path_(std::move(path)) {}
  void start(const StartRecord& r) override { append_line(path_, to_line(r)); }
  void train(const TrainRecord& r) override { append_line(path_, to_line(r)); }
  void eval(const EvalRecord& r) override { append_line(path_, to_line(r)); }
  void phases(const PhaseRecord& r) override { append_line(path_, to_line(r)); }

 private:
  std::string path_;
};

std::string percent(double fraction) { return formatted("%.2f %%", 100 * fraction); }

}  // namespace

std::unique_ptr<Sink> make_json_sink(const std::string& folder, std::int64_t step, std::int64_t evaluated_step) {
  const std::string path = (fs::path(folder) / "metrics.jsonl").string();
  take_out_later_records(path, step, evaluated_step);
  return std::make_unique<JsonSink>(path);
}

void append_eval_record(const std::string& folder, const EvalRecord& record) {
  append_line((fs::path(folder) / "metrics.jsonl").string(), to_line(record));
}

double wall_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto s = static_cast<long long>(seconds + 0.5);
  return s >= 3600 ? formatted("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60) : formatted("%lld:%02lld", s / 60, s % 60);
}

struct Console::State {
  std::mutex mutex;
  std::string log;
  // mpirun gives a rank a terminal as standard output even where its own goes into a file; standard error it leaves alone.
  bool is_terminal = ::isatty(STDOUT_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0, has_progress = false;
};

Console::Console(const std::string& folder) : state_(std::make_unique<State>()) {
  if (!folder.empty()) state_->log = (fs::path(folder) / "log").string();
}
Console::~Console() {
  if (state_->has_progress) std::cout << "\n" << std::flush;
}

void Console::say(const std::string& line) {
  const std::lock_guard lock(state_->mutex);
  if (state_->has_progress) std::cout << "\n";
  state_->has_progress = false;
  std::cout << line << "\n" << std::flush;
  if (!state_->log.empty()) append_line(state_->log, line);
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
  if (!state_->log.empty()) append_line(state_->log, line);
}

void Console::eval(const EvalRecord& r) {
  say(text_of("evaluated ", r.images, " images at step ", r.step, ": top-1 ", percent(r.top1), "  top-5 ", percent(r.top5), "  loss ", formatted("%.4f", r.loss)));
}

}  // namespace lockstep
