#include "base/host_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// What a version of control groups calls its files.
struct GroupFiles {
  const char *mount, *limit, *usage;
  std::string_view cache;      // prefix in memory.stat of what is of the group and all below it
};
constexpr GroupFiles version1{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"}, version2{"sys/fs/cgroup", "memory.max", "memory.current", ""};

/// Nothing for "max", for a number of 2^64 and more, and where there is no such file.
std::optional<std::size_t> number_in(const fs::path& path) {
  std::size_t number = 0;
  return std::ifstream(path) >> number ? std::optional(number) : std::nullopt;
}

/// The number behind a name in a file of "NAME NUMBER" lines.
std::optional<std::size_t> named_number(const fs::path& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t end = line.find(' ');
    if (end != std::string::npos && std::string_view(line).substr(0, end) == name) return std::strtoull(line.c_str() + end, nullptr, 10);
  }
  return {};
}

void apply(const fs::path& group, const GroupFiles& files, HostMemory& memory) {
  const std::optional<std::size_t> limit = number_in(group / files.limit);
  if (!limit || *limit == 0) return;
  // The page cache counts as used, but the kernel gives it away before it kills: a job that has read its shards has not less room for them.
  std::size_t cache = 0;
  for (const char* kind : {"inactive_file", "active_file"}) cache += named_number(group / "memory.stat", std::string(files.cache) + kind).value_or(0);
  const std::size_t usage = number_in(group / files.usage).value_or(0), kept = usage - std::min(usage, cache);
  memory.total = std::min(memory.total, *limit);
  memory.available = std::min(memory.available, *limit - std::min(*limit, kept));
}

}  // namespace

HostMemory host_memory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const std::optional<std::size_t> kib = named_number(meminfo, "MemTotal:");
  HostMemory memory;
  memory.total = kib ? *kib << 10 : static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::optional<std::size_t> free_kib = named_number(meminfo, "MemAvailable:");
  memory.available = free_kib ? std::min(memory.total, *free_kib << 10) : memory.total;

  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {   // 0::/PATH in version 2, 4:memory:/PATH in version 1, where controllers may be joined by commas
    const std::size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size()) continue;
    const std::string controllers = text_of(',', line.substr(first + 1, second - first - 1), ',');
    const bool is_version2 = controllers == ",,";
    if (!is_version2 && controllers.find(",memory,") == std::string::npos) continue;
    const GroupFiles& files = is_version2 ? version2 : version1;
    // In a container the path may be that of the host, of which only the end is mounted, as the root: what is not there limits nothing.
    for (fs::path group = fs::path(line.substr(second + 1)).relative_path();; group = group.parent_path()) {
      apply(root / files.mount / group, files, memory);
      if (group.empty()) break;
    }
  }
  return memory;
}

}  // namespace lockstep
