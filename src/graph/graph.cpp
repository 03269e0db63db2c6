#include "graph/graph.hpp"

namespace lockstep {

const Shape& Value::shape() const { return graph_->shape(id_); }

Graph::Graph(const Shape& images) : shapes_{images} {}

Value Graph::add(std::unique_ptr<Layer> layer, std::span<const Value> in, const std::string& name) {
  Node node;
  std::vector<Shape> shapes;
  for (const Value& value : in) {
    node.in.push_back(value.id());
    shapes.push_back(value.shape());
  }
  if (!name.empty()) node.name = prefix_ + name;
  const Shape out = layer->output(shapes);
  require(out.h > 0 && out.w > 0 && out.c > 0, "layer ", node.name.empty() ? layer->kind() : node.name, " has no output for an input of ",
          shapes.empty() ? Shape{}.h : shapes[0].h, " x ", shapes.empty() ? Shape{}.w : shapes[0].w, " pixels. Raise augment.size, or choose another model.name.");
  constexpr long double most_elements = 0x1p48L;             // so that no sum of a few hundred of them in bytes overflows
  require(static_cast<long double>(out.n) * static_cast<long double>(out.h) * static_cast<long double>(out.w) * static_cast<long double>(out.c) <= most_elements,
          "layer ", node.name.empty() ? layer->kind() : node.name, " would have ", out.n, " x ", out.h, " x ", out.w, " x ", out.c,
          " outputs, more than any device holds. Lower data.global_batch, augment.size or model.classes.");
  for (ParameterSpec& spec : layer->parameters()) {
    spec.name = node.name + "." + spec.name;
    spec.ordinal = static_cast<int>(parameters_.size());
    node.parameters.push_back(spec.ordinal);
    parameters_.push_back(std::move(spec));
  }
  for (BufferSpec& buffer : layer->buffers()) {
    buffer.name = node.name + "." + buffer.name;
    node.buffers.push_back(static_cast<int>(buffers_.size()));
    buffers_.push_back(std::move(buffer));
  }
  node.layer = std::move(layer);
  node.out = static_cast<int>(shapes_.size());
  shapes_.push_back(out);
  nodes_.push_back(std::move(node));
  return Value(this, nodes_.back().out);
}

Scope::Scope(Graph& graph, const std::string& name) : graph_(graph), before_(graph.prefix_) { graph_.prefix_ += name + "."; }
Scope::~Scope() { graph_.prefix_ = before_; }

}  // namespace lockstep
