#include "tensor/recording.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "tensor/cuda_check.hpp"
#include "tensor/early_launch.hpp"

namespace lockstep {
namespace {

constexpr int most_regions = 6, block_threads = 256;
constexpr std::size_t most_bytes = std::size_t{1} << 20;   // of a region: a larger one is worth a memset of its own

struct Regions {
  std::uint32_t* at[most_regions] = {};
  std::uint32_t words[most_regions] = {};
  int count = 0;
};

__global__ void zero_regions(Regions regions) {
  take_turn_in_stream();
  for (int k = 0; k < regions.count; ++k)
    for (std::uint32_t i = blockIdx.x * block_threads + threadIdx.x; i < regions.words[k]; i += gridDim.x * block_threads) regions.at[k][i] = 0;
}

/// Other ends of a node's edges.
struct Ends {
  std::vector<cudaGraphNode_t> nodes;
  std::vector<cudaGraphEdgeData> edges;
};
template <class Get>
Ends ends_of(cudaGraphNode_t node, Get&& get) {
  std::size_t count = 0;
  check_cuda(get(node, nullptr, nullptr, &count));
  Ends ends{std::vector<cudaGraphNode_t>(count), std::vector<cudaGraphEdgeData>(count)};
  if (count > 0) check_cuda(get(node, ends.nodes.data(), ends.edges.data(), &count));
  return ends;
}
Ends before(cudaGraphNode_t node) { return ends_of(node, cudaGraphNodeGetDependencies); }
Ends behind(cudaGraphNode_t node) { return ends_of(node, cudaGraphNodeGetDependentNodes); }

cudaGraphNodeType type_of(cudaGraphNode_t node) {
  cudaGraphNodeType type{};
  check_cuda(cudaGraphNodeGetType(node, &type));
  return type;
}

/// Whether the node clears a few whole words; then also which.
bool clears_words(cudaGraphNode_t node, std::uint32_t*& at, std::uint32_t& words) {
  if (type_of(node) != cudaGraphNodeTypeMemset) return false;
  cudaMemsetParams p{};
  check_cuda(cudaGraphMemsetNodeGetParams(node, &p));
  const std::size_t bytes = p.width * p.elementSize;
  if (p.value != 0 || p.height != 1 || bytes > most_bytes || bytes % 4 != 0 || reinterpret_cast<std::uintptr_t>(p.dst) % 4 != 0) return false;
  at = static_cast<std::uint32_t*>(p.dst), words = static_cast<std::uint32_t>(bytes / 4);
  return true;
}

bool is_default(const cudaGraphEdgeData& edge) { return edge.from_port == 0 && edge.to_port == 0 && edge.type == cudaGraphDependencyTypeDefault; }

/// A node for zero_regions behind `ends`; early behind a single kernel.
cudaGraphNode_t add_node(cudaGraph_t graph, Regions& regions, Ends ends) {
  const auto words = *std::max_element(regions.words, regions.words + regions.count);
  void* arguments[] = {&regions};
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeKernel;
  params.kernel.func = reinterpret_cast<void*>(&zero_regions);
  params.kernel.gridDim = dim3(std::clamp<unsigned>(words / (4 * block_threads), 1, 64)), params.kernel.blockDim = dim3(block_threads);
  params.kernel.kernelParams = arguments;
  static const bool may_be_early = may_launch_early(reinterpret_cast<const void*>(&zero_regions));
  if (may_be_early && ends.nodes.size() == 1 && is_default(ends.edges[0]) && type_of(ends.nodes[0]) == cudaGraphNodeTypeKernel)
    ends.edges[0].from_port = cudaGraphKernelNodePortProgrammatic, ends.edges[0].type = cudaGraphDependencyTypeProgrammatic;
  cudaGraphNode_t node = nullptr;
  check_cuda(cudaGraphAddNode(&node, graph, ends.nodes.data(), ends.edges.data(), ends.nodes.size(), &params));
  return node;
}

}  // namespace

void join_memsets(cudaGraph_t graph) {
  std::size_t count = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  check_cuda(cudaGraphGetNodes(graph, nodes.data(), &count));
  struct Region {
    std::uint32_t* at;
    std::uint32_t words;
    Ends before, behind;
  };
  std::map<cudaGraphNode_t, Region> regions;
  for (cudaGraphNode_t node : nodes) {
    Region region{};
    if (clears_words(node, region.at, region.words)) region.before = before(node), region.behind = behind(node), regions.emplace(node, std::move(region));
  }
  const auto only = [&](const Ends& ends) { return ends.nodes.size() == 1 && is_default(ends.edges[0]) ? regions.find(ends.nodes[0]) : regions.end(); };
  const auto next = [&](auto at) {       // the region right behind, in a chain
    const auto found = only(at->second.behind);
    return found != regions.end() && found->second.before.nodes.size() == 1 ? found : regions.end();
  };
  std::vector<std::vector<cudaGraphNode_t>> chains;
  for (auto at = regions.begin(); at != regions.end(); ++at) {
    const auto ahead = only(at->second.before);
    if (ahead != regions.end() && next(ahead) == at) continue;   // not the first of its chain
    for (auto link = at; link != regions.end(); link = next(link)) {
      if (link == at || chains.back().size() == most_regions) chains.emplace_back();
      chains.back().push_back(link->first);
    }
  }
  for (const std::vector<cudaGraphNode_t>& chain : chains) {
    Regions zeroed;
    for (cudaGraphNode_t node : chain) {
      const Region& region = regions.at(node);
      zeroed.at[zeroed.count] = region.at, zeroed.words[zeroed.count] = region.words, ++zeroed.count;
    }
    const cudaGraphNode_t kernel = add_node(graph, zeroed, before(chain.front()));
    for (cudaGraphNode_t to : behind(chain.back()).nodes) check_cuda(cudaGraphAddDependencies(graph, &kernel, &to, nullptr, 1));
    for (cudaGraphNode_t node : chain) check_cuda(cudaGraphDestroyNode(node));
  }
}

}  // namespace lockstep
