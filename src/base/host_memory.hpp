// host_memory: how much memory this process' host has, and how much of it is free, within what control groups leave to its job.
// In: /proc/meminfo and the control groups of the process.  Out: bytes.
#pragma once
#include <cstddef>
#include <filesystem>

namespace lockstep {

struct HostMemory {
  std::size_t total = 0;       // of the host, or the smallest limit of a control group (Slurm's --mem, a container) that the process is in
  std::size_t available = 0;   // what could be had now, the page cache given away: of the host, or of the group that leaves least
};

/// Of every process of the job together, not of one.  Limits of all groups above the process count, of version 1 and 2 of control groups.
/// What cannot be read limits nothing.  root: the folder that holds proc/ and sys/.
HostMemory host_memory(const std::filesystem::path& root = "/");

}  // namespace lockstep
