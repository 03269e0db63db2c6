#include "train/staged_split.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

namespace lockstep {
namespace {

constexpr std::int64_t fewest_copying = 4, looking_threads = 16;

StageSetting setting_of(const DataConfig& data) {
  return {.folder = data.stage, .host = host_name(), .limit_bytes = static_cast<std::int64_t>(data.stage_gib * (1 << 30)), .threads = static_cast<int>(std::max(data.readers, fewest_copying))};
}

std::string gib(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(bytes) / (1 << 30));
  return text;
}

}  // namespace

OpenSplit open_split(Communicator& comm, const DataConfig& data, const std::string& split, const std::function<void(const std::string&)>& say, const std::function<void()>& tick) {
  if (data.stage.empty()) return {.copy = nullptr, .images = std::make_unique<Dataset>(data.path, split)};
  const std::string told = comm.broadcast(comm.rank() == 0 ? read_manifest(data.path, split, looking_threads).text() : "", 0);
  const StageManifest manifest = parse_manifest(told);
  OpenSplit opened;
  const double start = stopwatch_seconds();
  if (comm.local_rank() == 0) {
    StageSetting setting = setting_of(data);
    setting.tick = tick;
    opened.copy = std::make_unique<StagedShards>(manifest, setting, comm.rank() == 0 ? say : [](const std::string&) {});
  }
  comm.barrier();                        // every node has its copy
  if (comm.rank() == 0) say(text_of("data.stage: ", split, " is ready on every node after ", std::round(10 * (stopwatch_seconds() - start)) / 10, " s"));
  const std::string folder = std::filesystem::path(data.stage) / manifest.folder_name();
  opened.images = std::make_unique<Dataset>(folder, split, text_of("Remove ", folder, " on host ", host_name(), ": the next start copies it anew."));
  return opened;
}

std::string staging_plan(const DataConfig& data, const std::vector<std::string>& splits) {
  if (data.stage.empty()) return "";
  std::int64_t bytes = 0, there = 0;
  std::string each;
  for (const std::string& split : splits) {
    const StageManifest manifest = read_manifest(data.path, split, looking_threads);
    require_stageable(manifest, setting_of(data));
    bytes += manifest.bytes(), there += staged_bytes(manifest, data.stage);
    each += text_of(each.empty() ? "" : ", ", split, " ", gib(manifest.bytes()));
  }
  return text_of("stage     ", data.stage, ": ", gib(bytes), " GiB (", each, ") are copied there on each node before training", there > 0 ? text_of("; this host has ", gib(there), " of it already") : "",
                 data.stage_gib > 0 ? text_of("; all data sets there may take ", data.stage_gib, " GiB") : "");
}

}  // namespace lockstep
