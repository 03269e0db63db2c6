#include "storage/stage.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "base/in_order.hpp"
#include "storage/aside_file.hpp"
#include "storage/descriptor.hpp"
#include "storage/file_lock.hpp"
#include "storage/sealed_file.hpp"
#include "storage/shards.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view lock_suffix = ".lock";
constexpr const char* manifest_name = "manifest";
constexpr std::size_t block_bytes = 4 << 20;
constexpr std::int64_t bytes_worth_telling = std::int64_t{10} << 30;   // on the way

std::string gib(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

std::string text_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::int64_t bytes_in(const fs::path& folder) {
  std::int64_t bytes = 0;
  std::error_code none;
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none)) {
    std::error_code gone;
    if (const auto size = fs::file_size(entry->path(), gone); !gone) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

/// Another data set below the stage's folder.
struct Neighbour {
  fs::path folder, lock;
  std::int64_t bytes = 0;                // that it has or will have
  fs::file_time_type used;
};

std::vector<Neighbour> neighbours(const fs::path& stage, const fs::path& but) {
  std::vector<Neighbour> found;
  std::error_code none;
  for (fs::directory_iterator entry(stage, none), end; !none && entry != end; entry.increment(none)) {
    const std::string manifest = text_in(entry->path() / manifest_name);
    if (entry->path() == but || !is_manifest(manifest)) continue;   // not ours, or nothing was copied yet
    Neighbour n{.folder = entry->path(), .lock = entry->path().string() + std::string(lock_suffix), .bytes = bytes_in(entry->path()), .used = {}};
    std::error_code unknown;
    if (const auto used = fs::last_write_time(n.lock, unknown); !unknown) n.used = used;
    try {
      n.bytes = std::max(n.bytes, parse_manifest(manifest).bytes());
    } catch (const Error&) {             // damaged: what lies there counts
    }
    found.push_back(std::move(n));
  }
  std::ranges::sort(found, {}, &Neighbour::used);
  return found;
}

/// Removes a data set unless a process uses it.
bool remove_unused(const Neighbour& n) {
  const FileLock lock(n.lock.string(), FileLock::Kind::alone, false);
  if (!lock.is_held()) return false;
  std::error_code failed;
  fs::remove_all(n.folder, failed);
  lock.remove();
  return !failed;
}

}  // namespace

void require_stageable(const StageManifest& manifest, const StageSetting& setting) {
  require(setting.limit_bytes == 0 || manifest.bytes() <= setting.limit_bytes, "data.stage_gib = ", static_cast<double>(setting.limit_bytes) / (1 << 30), ": the shards of split \"", manifest.split, "\" of ",
          manifest.source, " alone take ", gib(manifest.bytes()), ". Raise it, or set data.stage to \"\" to read them from where they are.");
}

namespace {

/// One split on its way to the local disk.
struct Staging {
  const StageManifest& manifest;
  const StageSetting& setting;
  const std::function<void(const std::string&)>& say;
  fs::path stage, folder;
  std::string lock_path;
  std::unique_ptr<FileLock> lock;

  /// What went wrong there, and the remedy.
  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const {
    fail("data.stage = \"", setting.folder, "\" on host ", setting.host, ": ", parts..., " Name another folder of the nodes' local disks, or set data.stage to \"\" to read the shards from where they are.");
  }

  /// Its images were compared when it was copied, and are again when they are read.
  bool is_whole(const StageManifest::Shard& shard) const { return is_copied(folder, shard) && damage_of((folder / shard.name).string()).empty(); }
  bool is_complete() const {
    return std::ranges::all_of(manifest.shards, [&](const StageManifest::Shard& shard) { return is_whole(shard); });
  }
  void take_lock(FileLock::Kind kind) {
    lock.reset();
    lock = std::make_unique<FileLock>(lock_path, kind, false);
    if (lock->is_held()) return;
    say(text_of("data.stage: waiting for another job on ", setting.host, " that copies ", manifest.split, " to ", folder.string()));
    lock = std::make_unique<FileLock>(lock_path, kind, true, setting.tick);
  }
  void make_room() const;
  void copy_missing() const;
  void run();
  void copy(const StageManifest::Shard& shard, std::atomic<std::int64_t>& done) const;
};

/// Under the stage's own lock, so that two jobs count the same room once.  What is promised: the manifest.
void Staging::make_room() const {
  const FileLock counting((stage / "lock").string(), FileLock::Kind::alone, true);
  const std::int64_t needed = manifest.bytes(), there = bytes_in(folder);
  std::vector<Neighbour> others = neighbours(stage, folder);
  std::int64_t promised = 0, taken = needed;
  for (const Neighbour& n : others) {
    taken += n.bytes;
    if (!FileLock(n.lock.string(), FileLock::Kind::shared, false).is_held()) promised += n.bytes - bytes_in(n.folder);   // it is being copied
  }
  const auto has_room = [&] { return (setting.limit_bytes == 0 || taken <= setting.limit_bytes) && free_bytes(stage.string()) - promised >= needed - there; };
  std::int64_t in_use = 0;
  for (const Neighbour& n : others) {
    if (has_room()) break;
    if (remove_unused(n)) taken -= n.bytes, say(text_of("data.stage: removed ", n.folder.string(), " (", gib(n.bytes), "), unused for the longest time"));
    else in_use += n.bytes;
  }
  if (!has_room()) {
    if (setting.limit_bytes > 0 && taken > setting.limit_bytes)
      fail_here("split \"", manifest.split, "\" takes ", gib(needed), " and other jobs use ", gib(in_use), " there, more than data.stage_gib = ", static_cast<double>(setting.limit_bytes) / (1 << 30), ". Raise it.");
    fail_here("its disk has ", gib(free_bytes(stage.string()) - promised), " free, and split \"", manifest.split, "\" takes ", gib(needed - there), " more. Free some space.");
  }
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) fail_here("a folder cannot be made in it: ", failed.message(), ".");
  write_whole_file((folder / manifest_name).string(), {manifest.text()});
}

void Staging::copy(const StageManifest::Shard& shard, std::atomic<std::int64_t>& done) const {
  const std::string from = (fs::path(manifest.source) / shard.name).string(), to = (folder / shard.name).string();
  const auto require_unchanged = [&] { require(shard_at(manifest.source, shard.name) == shard, from, ": was changed while it was copied. Wait until it is written, then start again."); };
  AsideFile copied(to);
  {
    const Descriptor in(from, O_RDONLY);
    if (!in) fail(from, ": cannot be opened: ", reason(), ".");
    require_unchanged();
    Descriptor out(::open(copied.aside().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!out) fail_here(to, " cannot be made: ", reason(), ".");
    std::vector<char> block(block_bytes);
    for (std::int64_t at = 0; at < shard.bytes;) {
      const std::int64_t got = read_at(in, block.data(), std::min<std::int64_t>(block_bytes, shard.bytes - at), at);
      if (got < 0) fail(from, ": cannot be read: ", reason(), ".");
      if (got == 0) fail(from, ": became shorter while it was copied. Wait until it is written, then start again.");
      if (!write_at(out, block.data(), got, at)) fail_here(to, " cannot be written: ", reason(), ". Free some space.");
      at += got, done += got;
      setting.tick();
    }
    if (!out.close()) fail_here(to, " cannot be written: ", reason(), ". Free some space.");
    require_unchanged();
  }
  if (const std::string damage = shard_damage(copied.aside()); !damage.empty()) {
    const std::string of_source = shard_damage(from);
    if (!of_source.empty()) fail(from, ": ", of_source, ". Use a whole copy of this shard, or convert again.");
    fail_here("the copy of ", shard.name, " ", damage, ", and its source does not: the disk is faulty.");
  }
  copied.publish();
}

void Staging::copy_missing() const {
  make_room();
  std::error_code none, ignored;
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none))
    if (entry->path().extension() == ".partial") fs::remove(entry->path(), ignored);   // of a job that was killed
  std::vector<const StageManifest::Shard*> missing;
  std::int64_t bytes = 0;
  for (const StageManifest::Shard& shard : manifest.shards)
    if (!is_whole(shard)) missing.push_back(&shard), bytes += shard.bytes;
  say(text_of("data.stage: copying ", gib(bytes), " of ", manifest.split, " (", missing.size(), " of ", counted(std::ssize(manifest.shards), "shard"), ") to ", folder.string()));
  std::atomic<std::int64_t> done = 0;
  std::int64_t told = 0;                 // tenths
  in_order(std::ssize(missing), setting.threads, [&](std::int64_t i) { return copy(*missing[static_cast<std::size_t>(i)], done), 0; },
           [&](std::int64_t i, int) {
             const std::int64_t tenths = 10 * (i + 1) / std::ssize(missing);
             if (tenths == 10 || (tenths > told && bytes > bytes_worth_telling)) say(text_of("data.stage: ", gib(done), " of ", gib(bytes), " copied and verified"));
             told = tenths;
           });
}

void Staging::run() {
  require_stageable(manifest, setting);
  std::error_code failed;
  fs::create_directories(stage, failed);
  if (failed) fail_here("it cannot be made: ", failed.message(), ".");
  if (::access(stage.c_str(), W_OK | X_OK) != 0) fail_here("it cannot be written: ", reason(), ".");
  for (bool is_new = false;; is_new = true) {
    take_lock(FileLock::Kind::shared);
    lock->touch();
    if (is_complete()) {
      if (!is_new) say(text_of("data.stage: ", manifest.split, " lies in ", folder.string(), " (", gib(manifest.bytes()), ")"));
      return;
    }
    take_lock(FileLock::Kind::alone);
    if (!is_complete()) copy_missing();  // else another job has copied it meanwhile
  }
}

}  // namespace

StagedShards::StagedShards(const StageManifest& manifest, const StageSetting& setting, const std::function<void(const std::string&)>& say) {
  const fs::path folder = fs::path(setting.folder) / manifest.folder_name();
  Staging staging{.manifest = manifest, .setting = setting, .say = say, .stage = setting.folder, .folder = folder, .lock_path = folder.string() + std::string(lock_suffix), .lock = {}};
  try {
    staging.run();
  } catch (const Error& error) {         // of a lock, or of a file's last step
    if (std::string_view(error.what()).starts_with(setting.folder)) staging.fail_here(error.what());
    throw;
  }
  folder_ = folder.string(), lock_ = std::move(staging.lock);
}

StagedShards::~StagedShards() = default;

}  // namespace lockstep
