// Fused graphs: the same numbers from fewer nodes, under the same names.
#include <gtest/gtest.h>

#include "layers/fusion.hpp"
#include "layers/layers.hpp"
#include "support/layers_reference.hpp"
#include "support/layers_run.hpp"

namespace lockstep::test {
namespace {

constexpr Shape images{4, 3, 5, 18};

struct Net {
  const char* name;
  void (*build)(Value x);
  std::vector<std::string> kinds;        // after fusion
};

const std::vector<Net>& nets() {
  static const std::vector<Net> all{
      {"norm, relu", [](Value x) { relu(batch_norm(x, "bn")); }, {"batch_norm+relu"}},
      {"identity block",
       [](Value x) {
         x = relu(x);
         Value y = relu(batch_norm(x, "bn1"));
         relu(add(batch_norm(y, "bn2"), x));
       },
       {"relu", "batch_norm+relu", "batch_norm+add+relu"}},
      {"residual first",
       [](Value x) {
         x = relu(x);
         relu(add(x, batch_norm(relu(batch_norm(x, "bn1")), "bn2")));
       },
       {"relu", "batch_norm+relu", "batch_norm+add+relu"}},
      {"block with a normalized shortcut",
       [](Value x) {
         Value y = batch_norm(relu(batch_norm(x, "bn1")), "bn2");
         const Value shortcut = batch_norm(x, "downsample.1");
         relu(add(y, shortcut));
       },
       {"batch_norm+relu", "batch_norm+batch_norm+relu"}},
      {"a normalized shortcut first",
       [](Value x) {
         const Value shortcut = batch_norm(x, "downsample.1");
         relu(add(shortcut, batch_norm(relu(batch_norm(x, "bn1")), "bn2")));
       },
       {"batch_norm+relu", "batch_norm+batch_norm+relu"}},
      {"two norms of one value",
       [](Value x) {
         x = relu(x);
         relu(add(batch_norm(x, "a"), batch_norm(x, "b")));
       },
       {"relu", "batch_norm", "batch_norm+add+relu"}},
      {"two norms without a relu", 
       [](Value x) {
         const Value a = relu(x), b = dropout(x, 0, 0);
         const Value y = batch_norm(a, "a"), z = batch_norm(b, "b");
         add(y, z);
       },
       {"relu", "dropout", "batch_norm", "batch_norm+add"}},
      {"norm, relu, pool", [](Value x) { max_pool(relu(batch_norm(relu(x), "bn")), 3, 2, 1); }, {"relu", "batch_norm+relu+max_pool"}},
      {"a stem", [](Value x) { relu(max_pool(relu(batch_norm(x, "bn")), 3, 2, 1)); }, {"batch_norm+relu+max_pool", "relu"}},
      {"a pool of other windows", [](Value x) { max_pool(relu(batch_norm(x, "bn")), 2, 2); }, {"batch_norm+relu", "max_pool"}},
      {"a rectified value that more than a pool reads",
       [](Value x) {
         const Value y = relu(batch_norm(x, "bn"));
         add(max_pool(y, 3, 1, 1), y);
       },
       {"batch_norm+relu", "max_pool", "add"}},
      {"a pool without a relu", [](Value x) { max_pool(batch_norm(x, "bn"), 2, 2); }, {"batch_norm", "max_pool"}},
      {"no relu behind the addition",
       [](Value x) {
         x = relu(x);
         add(batch_norm(dropout(x, 0, 0), "bn"), x);
       },
       {"relu", "dropout", "batch_norm+add"}},
      {"a normalized value with two readers",
       [](Value x) {
         const Value y = batch_norm(x, "bn"), a = relu(y), b = dropout(y, 0, 0);
         add(a, b);
       },
       {"batch_norm", "relu", "dropout", "add"}},
      {"a sum with two readers",
       [](Value x) {
         x = relu(x);
         const Value sum = add(batch_norm(dropout(x, 0, 0), "bn"), x), a = relu(sum), b = dropout(sum, 0, 1);
         add(a, b);
       },
       {"relu", "dropout", "batch_norm+add", "relu", "dropout", "add"}},
      {"a residual that is the norm's own input", [](Value x) { relu(add(batch_norm(x, "bn"), x)); }, {"batch_norm", "add", "relu"}},
      {"a norm added to itself",
       [](Value x) {
         const Value y = batch_norm(x, "bn");
         relu(add(y, y));
       },
       {"batch_norm", "add", "relu"}},
  };
  return all;
}

struct Result {
  std::vector<std::vector<float>> values;
};

Result run_net(Device& device, const Net& net, bool fuses, bool overlaps, bool is_frozen) {
  Graph graph(images);
  net.build(graph.input());
  if (fuses) {
    fuse(graph);
    std::vector<std::string> kinds;
    for (const Node& node : graph.nodes()) kinds.push_back(node.layer->kind());
    EXPECT_EQ(kinds, net.kinds);
  }
  for (Node& node : graph.nodes()) {
    EXPECT_EQ(node.layer->is_normalization(), !node.name.empty());
    EXPECT_EQ(node.parameters.size(), node.buffers.size());
    if (node.layer->is_normalization()) {
      EXPECT_EQ(graph.parameter_specs()[static_cast<std::size_t>(node.parameters.at(0))].name, node.name + ".weight");
    }
    if (is_frozen) for (std::size_t which = 0; 2 * which < node.parameters.size(); ++which) node.layer->use_running_statistics(which);
  }
  LayersRun run(device, graph, {.overlaps = overlaps});
  const int parameters = static_cast<int>(graph.parameter_specs().size());
  for (int i = 0; i < parameters; ++i) run.put_weight(i, noise(images.c, static_cast<std::uint64_t>(20 + i), 0.3, i % 2 == 0 ? 1 : 0));
  run.put_input(noise(images.size(), 1, 1, 0.2));
  run.forward();
  Result r;
  r.values.push_back(run.output());
  run.backward(noise(graph.shape(graph.output()).size(), 2));
  r.values.push_back(run.grad_input());
  for (int i = 0; i < parameters; ++i) r.values.push_back(run.grad_weight(i)), r.values.push_back(run.buffer(i));
  run.forward(Mode::evaluation);
  r.values.push_back(run.output());
  return r;
}

TEST(Fusion, GivesTheSameNumbersAndTheExpectedNodes) {
  Device device;
  for (const Net& net : nets())
    for (const bool overlaps : {false, true})
      for (const bool is_frozen : {false, true}) {
        SCOPED_TRACE(text_of(net.name, overlaps ? ", overlapping" : "", is_frozen ? ", running statistics" : ""));
        const Result want = run_net(device, net, false, false, is_frozen), got = run_net(device, net, true, overlaps, is_frozen);
        ASSERT_EQ(want.values.size(), got.values.size());
        // Rounding alone: the fused pass rounds once where the plain ones store and load, which in float is the same; sums over windows rather than
        // pixels add in another order.
        for (std::size_t i = 0; i < want.values.size(); ++i) EXPECT_LE(distance(want.values[i], got.values[i]), 16 * rounding(DType::f32)) << i;
      }
}

}  // namespace
}  // namespace lockstep::test
