#include "graph/planner.hpp"

#include <algorithm>
#include <numeric>

namespace lockstep {

Plan plan_memory(std::span<const Lifetime> tensors, std::size_t alignment) {
  Plan plan;
  plan.offsets.assign(tensors.size(), 0);
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return tensors[a].bytes > tensors[b].bytes; });

  const auto rounded = [&](std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  std::vector<std::size_t> placed;  // by offset
  for (const std::size_t i : order) {
    const Lifetime& t = tensors[i];
    if (t.bytes == 0) continue;
    std::size_t offset = 0;
    for (const std::size_t j : placed) {
      const Lifetime& other = tensors[j];
      if (other.last < t.first || t.last < other.first) continue;
      if (plan.offsets[j] >= offset + rounded(t.bytes)) break;  // the gap before j is large enough
      offset = std::max(offset, plan.offsets[j] + rounded(other.bytes));
    }
    plan.offsets[i] = offset;
    plan.arena_bytes = std::max(plan.arena_bytes, offset + rounded(t.bytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                   [&](std::size_t value, std::size_t j) { return value < plan.offsets[j]; }), i);
  }
  return plan;
}

}  // namespace lockstep
