#include "layers/fusion.hpp"

#include "layers/batch_norm_pair.hpp"
#include "layers/batch_norm_pool.hpp"

namespace lockstep {
namespace {

/// The one node that reads a value; -1 when none or several do.
std::vector<int> only_readers(const Graph& graph) {
  std::vector<int> reader(static_cast<std::size_t>(graph.value_count()), -1), readings(reader.size(), 0);
  const auto nodes = graph.nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const int value : nodes[i].in) reader[static_cast<std::size_t>(value)] = static_cast<int>(i), ++readings[static_cast<std::size_t>(value)];
  for (std::size_t v = 0; v < reader.size(); ++v)
    if (readings[v] != 1) reader[v] = -1;
  return reader;
}

}  // namespace

void fuse(Graph& graph) {
  const std::vector<int> reader = only_readers(graph);
  std::vector<Node> nodes = graph.take_nodes();
  std::vector<int> maker(static_cast<std::size_t>(graph.value_count()), -1);
  for (std::size_t i = 0; i < nodes.size(); ++i) maker[static_cast<std::size_t>(nodes[i].out)] = static_cast<int>(i);
  const auto next = [&](const Node& node, const char* kind) -> Node* {   // what alone reads the node's output, if it is of that kind
    const int at = reader[static_cast<std::size_t>(node.out)];
    if (at < 0) return nullptr;
    Node& reads = nodes[static_cast<std::size_t>(at)];
    return reads.layer && reads.layer->kind() == kind ? &reads : nullptr;
  };
  const auto plain_norm = [&](int value) -> Node* {                       // what makes the value, if it is a norm that nothing is fused with, and one node reads it
    const int at = maker[static_cast<std::size_t>(value)];
    if (at < 0 || reader[static_cast<std::size_t>(value)] < 0) return nullptr;
    Node& makes = nodes[static_cast<std::size_t>(at)];
    return makes.layer && makes.layer->kind() == "batch_norm" ? &makes : nullptr;
  };
  for (Node& node : nodes) {
    auto* norm = dynamic_cast<BatchNorm*>(node.layer.get());
    if (!norm || norm->kind() != "batch_norm") continue;
    Node* sum = next(node, "add");
    if (sum && (sum->in[0] == node.in[0] || sum->in[1] == node.in[0])) sum = nullptr;   // both gradients would land in one tensor
    Node* last = next(sum ? *sum : node, "relu");
    if (!sum && !last) continue;
    const int other = !sum ? -1 : sum->in[0] == node.out ? sum->in[1] : sum->in[0];
    Node* const second = sum && last ? plain_norm(other) : nullptr;
    if (second && second->in[0] != node.in[0]) {
      node.layer = std::make_unique<BatchNormPair>(*norm, dynamic_cast<BatchNorm&>(*second->layer));
      node.in.push_back(second->in[0]);
      for (const int parameter : second->parameters) node.parameters.push_back(parameter);
      for (const int buffer : second->buffers) node.buffers.push_back(buffer);
      second->layer.reset(), sum->layer.reset();
    } else {
      if (sum) node.in.push_back(other), norm->fuse_add(), sum->layer.reset();
      if (last) norm->fuse_relu();
      Node* const pool = last && !sum ? next(*last, "max_pool") : nullptr;
      if (pool && dynamic_cast<MaxPool&>(*pool->layer).window() == stem_window) {
        norm->fuse_pool();
        last->layer.reset();
        last = pool;
      }
    }
    Node& place = last ? *last : *sum;   // there all inputs exist
    node.out = place.out;
    place = std::move(node);             // leaves a node without a layer, as sum is
  }
  std::erase_if(nodes, [](const Node& node) { return !node.layer; });
  graph.set_nodes(std::move(nodes));
}

}  // namespace lockstep
