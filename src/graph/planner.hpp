// planner: where each activation lives.
// In: for every tensor, its size and the first and last task that touches it.
// Out: an offset for each, and the arena size.  Pure; no device code; the executor allocates.
// Method: largest first, lowest offset that fits (Pisarchyk and Lee 2020, "greedy by size").
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace lockstep {

struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;               // positions in the task list, both included
};
struct Plan {
  std::vector<std::size_t> offsets;
  std::size_t arena_bytes = 0;
};
Plan plan_memory(std::span<const Lifetime> tensors, std::size_t alignment = 256);

}  // namespace lockstep
