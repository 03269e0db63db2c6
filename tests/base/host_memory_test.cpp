// host_memory: the smallest of what the host and the control groups above the process leave, out of files as Linux writes them.
#include "base/host_memory.hpp"

#include <gtest/gtest.h>

#include "support/scratch.hpp"

namespace lockstep {
namespace {

constexpr std::size_t gib = std::size_t{1} << 30;

/// A folder that stands for /, with 64 GiB of memory, of which 48 are available.
class Host {
 public:
  Host() { write("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   50331648 kB\nBuffers: 1 kB\n"); }
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    write_file(path.string(), text);
  }
  void write(const std::string& name, std::size_t number) { write(name, std::to_string(number) + "\n"); }
  void remove(const std::string& name) { std::filesystem::remove(folder_ / name); }
  void expect(std::size_t total_gib, std::size_t available_gib, const std::string& what) const {
    const HostMemory memory = host_memory(folder_.path());
    EXPECT_EQ(memory.total, total_gib * gib) << what;
    EXPECT_EQ(memory.available, available_gib * gib) << what;
  }

 private:
  ScratchFolder folder_;
};

TEST(HostMemory, IsTheHostsWhereNoGroupLimitsIt) {
  Host host;
  host.expect(64, 48, "no groups");
  host.write("proc/self/cgroup", "0::/user.slice/job\n");
  host.expect(64, 48, "a group without files");
  host.write("sys/fs/cgroup/user.slice/memory.max", "max\n");
  host.write("sys/fs/cgroup/user.slice/memory.current", 60 * gib);
  host.write("sys/fs/cgroup/user.slice/job/memory.max", "max\n");
  host.expect(64, 48, "max");
  host.write("sys/fs/cgroup/user.slice/job/memory.max", 100 * gib);
  host.expect(64, 48, "a limit above what there is");
  for (const char* nothing : {"", "\n", "no number\n", "18446744073709551616\n", "99999999999999999999999\n"}) {
    host.write("sys/fs/cgroup/user.slice/job/memory.max", nothing);
    host.expect(64, 48, nothing);
  }
  for (const char* odd : {"", "\n", "0\n", "0:\n", "0::\n", "::/\n", "0::/../../other\n", "7:cpu,cpuset:/user.slice/job\n"}) {
    host.write("proc/self/cgroup", odd);
    host.expect(64, 48, odd);
  }
}

TEST(HostMemory, OfVersion2IsTheLeastThatAnyGroupAboveLeaves) {
  Host host;
  host.write("proc/self/cgroup", "0::/slurm/job/step\n");
  const std::string group = "sys/fs/cgroup/slurm/";
  host.write(group + "job/step/memory.max", "max\n");
  host.write(group + "job/memory.max", 32 * gib);
  host.expect(32, 32, "no file of what is used");
  host.write(group + "job/memory.current", 12 * gib);
  host.expect(32, 20, "the middle one");
  host.write(group + "memory.max", 40 * gib);
  host.write(group + "memory.current", 35 * gib);
  host.expect(32, 5, "the upper one is smaller by what others use");
  host.write(group + "job/step/memory.max", 4 * gib);
  host.write(group + "job/step/memory.current", 1 * gib);
  host.expect(4, 3, "the lowest one");
  host.write("sys/fs/cgroup/memory.max", 2 * gib);             // as in a container, where its own group is the root
  host.expect(2, 2, "the root");
  host.write("sys/fs/cgroup/memory.current", 3 * gib);         // above it for a moment, or the limit was lowered
  host.expect(2, 0, "more used than the limit");
  host.write("proc/meminfo", "MemTotal: 67108864 kB\n");
  host.remove("sys/fs/cgroup/memory.max");
  host.expect(4, 3, "a kernel that does not say what is available");
}

TEST(HostMemory, OfVersion1IsThatOfTheControllerAlsoWhereItIsJoinedToOthers) {
  Host host;
  const std::string group = "sys/fs/cgroup/memory/";
  host.write(group + "memory.limit_in_bytes", "9223372036854771712\n");   // what version 1 writes where nothing limits
  host.write(group + "memory.usage_in_bytes", 50 * gib);
  host.write(group + "docker/a:b/memory.limit_in_bytes", 16 * gib);
  host.write(group + "docker/a:b/memory.usage_in_bytes", 6 * gib);
  for (const char* lines : {"9:cpu:/docker\n4:memory:/docker/a:b\n0::/\n", "4:hugetlb,memory,pids:/docker/a:b\n", "4:memory:/docker/a:b/gone (deleted)\n", "4:memory:/docker/a:b/"}) {
    host.write("proc/self/cgroup", lines);
    host.expect(16, 10, lines);
  }
  host.write("proc/self/cgroup", "4:memory:/of/the/host\n");   // in a container, whose own group is the root of what it sees
  host.expect(64, 48, "the root has no limit");
  host.write(group + "memory.limit_in_bytes", 60 * gib);
  host.expect(60, 10, "the root has one");
  host.write("proc/self/cgroup", "4:memory:/docker/a:b\n");
  host.write(group + "memory.limit_in_bytes", "18446744073709551615\n");
  host.expect(16, 10, "the largest number of 64 bits");
}

TEST(HostMemory, APageCacheThatTheGroupHoldsCanBeHad) {
  Host host;
  host.write("proc/self/cgroup", "4:memory:/job\n0::/job\n");
  const auto stat = [](const char* of_all, std::size_t inactive, std::size_t active) {
    return "anon 1\ninactive_file_of_another_kind 99999999999\n" + std::string(of_all) + "inactive_file " + std::to_string(inactive * gib) + "\n" + of_all + "active_file " + std::to_string(active * gib) + "\n";
  };
  host.write("sys/fs/cgroup/job/memory.max", 20 * gib);
  host.write("sys/fs/cgroup/job/memory.current", 19 * gib);
  host.write("sys/fs/cgroup/job/memory.stat", stat("", 10, 4));
  host.expect(20, 15, "version 2");
  host.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", 18 * gib);
  host.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", 18 * gib);
  host.write("sys/fs/cgroup/memory/job/memory.stat", stat("", 1, 1) + stat("total_", 8, 3));
  host.expect(18, 11, "version 1, which counts the groups below in total_");
  host.write("sys/fs/cgroup/memory/job/memory.stat", stat("total_", 80, 3));
  host.expect(18, 15, "more cache than is used");
}

TEST(HostMemory, OfThisHostIsMoreThanNothingAndNoMoreThanThereIs) {
  const HostMemory memory = host_memory();
  EXPECT_GT(memory.available, std::size_t{1} << 20);
  EXPECT_LE(memory.available, memory.total);
}

}  // namespace
}  // namespace lockstep
