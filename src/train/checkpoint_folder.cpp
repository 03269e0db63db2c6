#include "train/checkpoint_folder.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <thread>

#include "storage/sealed_file.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view prefix = "step-", suffix = ".h5";

/// Everything but: the newest keep_last, the best, and those at a multiple of keep_every_epochs.  Steps after `newest`, the one just written, are
/// damaged files that the run did not resume from: they are left, and do not count.
void remove_old(const std::string& folder, const CheckpointConfig& config, std::int64_t steps_per_epoch, std::int64_t newest, std::int64_t best_step) {
  if (config.keep_last == 0) return;
  std::vector<std::string> files = checkpoints_in(folder);
  std::erase_if(files, [&](const std::string& file) { return step_of(file) > newest; });
  for (std::size_t i = static_cast<std::size_t>(config.keep_last); i < files.size(); ++i) {
    const std::int64_t step = step_of(files[i]);
    if (config.keep_best && step == best_step) continue;
    if (config.keep_every_epochs > 0 && step % (steps_per_epoch * config.keep_every_epochs) == 0) continue;
    std::error_code ignored;             // one that cannot be removed costs space only
    fs::remove(files[i], ignored);
  }
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
  return std::string(prefix) + digits + std::string(suffix);
}

std::int64_t step_of(const std::string& path) {
  const std::string name = fs::path(path).filename();
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return -1;
  const std::string digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::stoll(digits);
}

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code none;                  // no such folder: no checkpoints
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none))
    if (step_of(entry->path()) >= 0) files.push_back(entry->path());
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return step_of(a) > step_of(b); });
  return files;
}

Found newest_valid(const std::string& folder) {
  for (;;) {
    Found found;
    bool is_one_gone = false;            // training beside us removed it since it was listed: a newer one is there
    for (const std::string& file : checkpoints_in(folder)) {
      const std::string damage = damage_of(file);
      if (damage.empty()) {
        found.path = file;
        return found;
      }
      fs::exists(file) ? found.refused.push_back(file + " " + damage) : void(is_one_gone = true);
    }
    if (!is_one_gone) return found;
  }
}

Found best_or_newest(const std::string& folder) {
  for (;;) {
    Found found = newest_valid(folder);
    if (found.path.empty()) return found;
    try {
      const std::string best = (fs::path(folder) / checkpoint_name(read_checkpoint_progress(found.path).best_step)).string();
      const std::string damage = damage_of(best);
      if (damage.empty()) found.path = best;
      else if (fs::exists(best)) found.refused.push_back(best + " " + damage);
      return found;
    } catch (const Error&) {
      if (fs::exists(found.path)) throw;   // else gone since it was found: the next look finds a newer one
    }
  }
}

struct CheckpointWriter::State {
  std::string folder;
  CheckpointConfig config;
  std::int64_t steps_per_epoch;
  std::function<void(const std::string&)> say;
  std::function<void()> tick;
  std::thread thread;
  std::exception_ptr failure;            // of the last write

  void join() {
    if (thread.joinable()) thread.join();
  }
};

CheckpointWriter::CheckpointWriter(std::string folder, const CheckpointConfig& config, std::int64_t steps_per_epoch,
                                   std::function<void(const std::string&)> say, std::function<void()> tick)
    : state_(new State{std::move(folder), config, steps_per_epoch, std::move(say), std::move(tick), {}, {}}) {
  std::error_code none, ignored;
  for (fs::directory_iterator entry(state_->folder, none), end; !none && entry != end; entry.increment(none))
    if (entry->path().extension() == ".partial") fs::remove(entry->path(), ignored);   // left by a run that was killed while it wrote
}

CheckpointWriter::~CheckpointWriter() { state_->join(); }

void CheckpointWriter::write(CheckpointHeader header, TrainingState state, const Parameters& layout) {
  state_->join();
  const bool failed_before = state_->failure != nullptr;
  State& s = *state_;
  s.thread = std::thread([&s, &layout, failed_before, header = std::move(header), state = std::move(state)] {
    const std::string path = (fs::path(s.folder) / checkpoint_name(state.progress.step)).string();
    try {
      write_checkpoint(path, header, state, layout, s.tick);
      s.failure = nullptr;
      remove_old(s.folder, s.config, s.steps_per_epoch, state.progress.step, state.progress.best_step);
    } catch (const std::exception& error) {
      if (!failed_before) s.say(text_of("warning: no checkpoint at step ", state.progress.step, ": ", error.what(),
                                        " Earlier ones are kept, and the next is tried as planned."));
      s.failure = std::current_exception();
    }
  });
}

void CheckpointWriter::finish() {
  state_->join();
  if (!state_->failure) return;
  try {
    std::rethrow_exception(state_->failure);
  } catch (const Error& error) {
    fail_with(error.code(), "the last checkpoint could not be written: ", error.what(), " Started again, the run goes on from an earlier one.");
  }
}

}  // namespace lockstep
