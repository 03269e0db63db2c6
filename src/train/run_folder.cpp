#include "train/run_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/aside.hpp"
#include "train/checkpoint.hpp"
#include "train/checkpoint_folder.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string text_in(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool is_used(const fs::path& folder) { return fs::exists(folder / "metrics.jsonl") || !checkpoints_in(folder / "checkpoints").empty(); }

std::string free_name(const RunConfig& config) {
  for (int i = 2;; ++i) {
    const std::string name = config.name + "-" + std::to_string(i);
    if (!fs::exists(fs::path(config.outputs) / name)) return name;
  }
}

ResumeDecision from_newest(const std::string& folder) {
  ResumeDecision decision;
  const Found found = newest_valid(folder);
  for (const std::string& refused : found.refused) decision.notes.push_back("not resumed from " + refused);
  decision.checkpoint = found.path;
  require(!found.path.empty() || found.refused.empty(), "none of the checkpoints in ", folder, " is whole: ", found.refused.empty() ? "" : found.refused[0],
          ". Move that folder away to start again.");
  return decision;
}

}  // namespace

RunLock::RunLock(const std::string& folder, const std::string& holder) {
  const std::string path = (fs::path(folder) / "lock").string();
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  require(descriptor_ >= 0, path, " cannot be opened: ", std::strerror(errno), ". Check the folder's permissions, or set run.outputs.");
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(descriptor_, F_SETLK, &whole) != 0) {
    const int reason = errno;
    const std::string other = text_in(path);
    if (reason == EACCES || reason == EAGAIN) {
      ::close(descriptor_);
      fail("another job works in ", folder, ": ", other.empty() ? "unknown" : other.substr(0, other.find('\n')), ". Wait for it or end it, or choose another run.name.");
    }
    // Lustre is often mounted so, and a run must not need another file system.
    warning_ = text_of("warning: ", path, " cannot be locked: ", std::strerror(reason), ". Nothing keeps a second job out of this run: do not start one, or put run.outputs on a file system that has POSIX locks.");
  }
  text_ = holder + "\n";
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, text_.data(), text_.size(), 0) < 0)
    fail(path, " cannot be written: ", std::strerror(errno), ". Check free space and permissions.");
  ::fsync(descriptor_);                  // so that other nodes see it (train/agreement): over NFS they would only when it is closed
}
RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string run_folder(const RunConfig& config) {
  std::string shown = config.name;       // a control character would spoil the line of every message about this run
  std::ranges::replace_if(shown, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  require(!config.name.empty() && config.name.find('/') == std::string::npos && config.name != "." && config.name != ".." && shown == config.name,
          "run.name = \"", shown, "\" is no folder name. Use letters, digits, - and _.");
  return (fs::path(config.outputs) / config.name).string();
}

NamedRun find_run(const std::string& input_or_folder, std::span<const std::string> overrides) {
  std::error_code unknown;
  if (!fs::is_directory(input_or_folder, unknown)) {
    require(fs::exists(input_or_folder, unknown), input_or_folder, ": there is no such run's folder or input file. Name a folder below run.outputs, or the run's INPUT.toml.");
    Config config = read_config(input_or_folder, overrides);
    const std::string folder = run_folder(config.run);
    return {std::move(config), folder};
  }
  const fs::path input = fs::path(input_or_folder) / "config.toml";
  require(fs::is_regular_file(input), input_or_folder, ": is no run's folder, it has no config.toml. Name a folder below run.outputs.");
  std::string folder = input_or_folder;
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return {read_config(input.string(), overrides), folder};
}

void remove_leftovers(const std::string& folder) {
  constexpr time_t recent = 600;         // seconds
  struct stat lock {}, left {};
  if (::stat((fs::path(folder) / "lock").c_str(), &lock) != 0) return;   // written just now
  std::error_code none, ignored;
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none))
    if (entry->path().extension() == ".partial" && ::stat(entry->path().c_str(), &left) == 0 && left.st_mtime + recent < lock.st_mtime) fs::remove(entry->path(), ignored);
}

ResumeDecision decide_resume(const Config& config) {
  const fs::path folder = run_folder(config.run), checkpoints = folder / "checkpoints";
  ResumeDecision decision;
  if (config.run.resume == "never") {
    require(!is_used(folder), "run.resume = \"never\", but ", folder.string(), " holds a run already. Use run.name=", free_name(config.run), ", or run.resume=auto.");
    return decision;
  }
  if (config.run.resume == "auto") {
    decision = from_newest(checkpoints);
  } else {
    const fs::path asked = config.run.resume;
    require(fs::is_regular_file(asked), "run.resume = \"", asked.string(), "\": no such file. Give the path of a checkpoint, \"auto\" or \"never\".");
    // A requeued job says the same path again, but by then has newer checkpoints of its own.
    decision = from_newest(checkpoints);
    const bool is_continued = !decision.checkpoint.empty() && parse_config(text_in(folder / "config.toml"), (folder / "config.toml").string()).run.resume == config.run.resume;
    require(is_continued || decision.checkpoint.empty() || fs::equivalent(decision.checkpoint, asked), "run.resume names ", asked.string(), ", but ", folder.string(),
            " holds a newer checkpoint. Use run.name=", free_name(config.run), " to go on from the older one.");
    if (!is_continued) decision.checkpoint = asked.string();
  }
  if (!decision.checkpoint.empty()) {
    const CheckpointHeader header = read_checkpoint_header(decision.checkpoint);
    decision.global_batch = header.global_batch;
    decision.class_names = header.class_names;
    decision.config = header.config;
    decision.notes.push_back("resumed from " + decision.checkpoint);
  }
  return decision;
}

void require_same_run(const Config& config, const std::string& folder) {
  const fs::path path = fs::path(folder) / "config.toml";
  if (!is_used(folder) || !fs::exists(path)) return;   // a start that failed has not used the name
  const Config before = parse_config(text_in(path), path.string());
  require(config.run.epochs >= before.run.epochs, "run.epochs was ", before.run.epochs, " in ", path.string(), " and is ", config.run.epochs,
          " now. It may only grow; use another run.name for a shorter run.");
  for (const Difference& d : differences(before, config))
    require(!changes_result(d.key), d.key, " was ", d.before, " in ", path.string(), " and is ", d.after,
            " now: the resumed run would be neither. Set it back, or use another run.name.");
}

}  // namespace lockstep
