// Sync-BN: a batch cut over the ranks, raggedly or with nothing on some, gives what one rank with the whole batch gives.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "comm/communicator.hpp"
#include "comm/exchange.hpp"
#include "layers/fusion.hpp"
#include "layers/layers.hpp"
#include "support/layers_reference.hpp"
#include "support/layers_run.hpp"

namespace lockstep::test {
namespace {

constexpr std::int64_t whole = 12;
constexpr Shape image{1, 3, 4, 19};

/// Images [begin, end) of each rank.
std::vector<std::int64_t> cuts(const std::string& way, int ranks) {
  std::vector<std::int64_t> at(static_cast<std::size_t>(ranks) + 1, whole);
  for (int r = 0; r < ranks; ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (way == "equal") at[i] = whole * r / ranks;
    if (way == "ragged") at[i] = r == 0 ? 0 : std::min<std::int64_t>(whole, 1 + 5 * (r - 1) + r);
    if (way == "all on the last") at[i] = 0;
    if (way == "all on the first") at[i] = r == 0 ? 0 : whole;
  }
  return at;
}

/// relu(add(bn2(relu(bn1(x))), x)): both forms of the layer.
void build(Graph& graph) {
  const Value x = relu(graph.input());
  relu(add(batch_norm(relu(batch_norm(x, "bn1")), "bn2"), x));
  fuse(graph);
}

std::vector<float> piece(const std::vector<float>& all, std::int64_t begin, std::int64_t end) {
  return {all.begin() + begin * image.size(), all.begin() + end * image.size()};
}

/// |got - want| of sums over a whole batch, for each of their terms, which have size 1.  Not against the sum: its terms cancel (bn2 divides
/// most of bn1's scale away again), while a mean or deviation that is one rounding off moves them all alike.
double distance_of_terms(const std::vector<float>& want, const std::vector<float>& got) {
  double square = 0;
  for (std::size_t i = 0; i < want.size(); ++i) square += std::pow(static_cast<double>(want[i]) - got[i], 2);
  return std::sqrt(square / static_cast<double>(want.size())) / static_cast<double>(whole * image.h * image.w);
}

std::vector<float> sum_over_ranks(Communicator& comm, const std::vector<float>& mine) {
  std::vector<double> sums(mine.begin(), mine.end());
  comm.sum(std::span<double>(sums));
  return {sums.begin(), sums.end()};
}

bool has_equal_bits_on_all_ranks(Communicator& comm, const std::vector<float>& values) {
  bool equal = true;
  for (const float v : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    equal = equal && comm.max(bits) == comm.min(bits);
  }
  return equal;
}

void put_all(LayersRun& run) {
  for (int layer : {0, 1}) {
    const auto stream = static_cast<std::uint64_t>(10 * layer);
    // Near 1 and 0, so that no channel is almost all zeros behind its relu: the next norm would divide by a tiny deviation.
    run.put_weight(2 * layer, noise(image.c, stream + 3, 0.1, 1)), run.put_weight(2 * layer + 1, noise(image.c, stream + 4, 0.1));
    run.put_buffer(2 * layer, noise(image.c, stream + 5)), run.put_buffer(2 * layer + 1, noise(image.c, stream + 6, 0.1, 1));
  }
}

TEST(SyncBatchNorm, EqualsOneRankWithTheWholeBatchHoweverItIsCut) {
  Device device;
  const auto comm = with_gpus(make_communicator(), device, [](const std::string&) {});
  const auto exchange = make_exchange(device, comm->split(0), 2 * image.c + 2);
  const auto x = noise(whole * image.size(), 1, 2, 0.5), dy = noise(whole * image.size(), 2);

  Graph whole_graph(image.with_batch(whole));
  build(whole_graph);
  LayersRun want(device, whole_graph);
  put_all(want);
  want.put_input(x);
  want.forward();
  want.backward(dy);

  for (const std::string way : {"equal", "ragged", "all on the last", "all on the first"}) {
    SCOPED_TRACE(way);
    const auto at = cuts(way, comm->size());
    const std::int64_t begin = at[static_cast<std::size_t>(comm->rank())], end = at[static_cast<std::size_t>(comm->rank()) + 1];
    Graph graph(image.with_batch(whole));
    build(graph);
    LayersRun run(device, graph, {.exchange = exchange.get()});
    put_all(run);
    run.use_batch(end - begin);
    run.put_input(piece(x, begin, end));
    run.forward();
    run.backward(piece(dy, begin, end));

    // The same sums in another order.
    const double tolerance = 32 * rounding(DType::f32);
    EXPECT_LE(distance(piece(want.output(), begin, end), run.output()), tolerance);
    EXPECT_LE(distance(piece(want.grad_input(), begin, end), run.grad_input()), tolerance);
    for (int i = 0; i < 4; ++i) {
      EXPECT_LE(distance_of_terms(want.grad_weight(i), sum_over_ranks(*comm, run.grad_weight(i))), 4 * rounding(DType::f32)) << i;
      EXPECT_LE(distance(want.buffer(i), run.buffer(i)), tolerance) << i;
      EXPECT_TRUE(has_equal_bits_on_all_ranks(*comm, run.buffer(i))) << i;
    }
  }
}

TEST(SyncBatchNorm, NoImagesAnywhereChangeNothing) {
  Device device;
  const auto comm = with_gpus(make_communicator(), device, [](const std::string&) {});
  const auto exchange = make_exchange(device, comm->split(0), 2 * image.c + 2);
  Graph graph(image.with_batch(2));
  build(graph);
  LayersRun run(device, graph, {.exchange = exchange.get()});
  put_all(run);
  const auto mean = run.buffer(0), var = run.buffer(3);
  run.use_batch(0);
  run.forward();
  run.backward({});
  EXPECT_EQ(run.buffer(0), mean);
  EXPECT_EQ(run.buffer(3), var);
  EXPECT_EQ(run.grad_weight(0), std::vector<float>(static_cast<std::size_t>(image.c), 0));
}

TEST(SyncBatchNorm, GroupsKeepStatisticsOfTheirOwn) {
  Device device;
  const auto comm = with_gpus(make_communicator(), device, [](const std::string&) {});
  if (comm->size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  const auto exchange = make_exchange(device, comm->split(2), 2 * image.c + 2);
  const int group = comm->rank() / 2;
  const auto stream = static_cast<std::uint64_t>(100 + group);
  const auto x = noise(4 * image.size(), stream), dy = noise(4 * image.size(), stream + 50);
  const std::int64_t begin = comm->rank() % 2 == 0 ? 0 : 3, end = comm->rank() % 2 == 0 ? 3 : 4;
  const auto run_with = [&](Exchange* e, std::int64_t from, std::int64_t to) {
    Graph graph(image.with_batch(4));
    build(graph);
    LayersRun run(device, graph, {.exchange = e});
    put_all(run);
    run.use_batch(to - from);
    run.put_input(piece(x, from, to));
    run.forward();
    run.backward(piece(dy, from, to));
    return std::pair(run.buffer(1), run.grad_input());
  };
  const auto [var, grad] = run_with(exchange.get(), begin, end);
  const auto [want_var, want_grad] = run_with(nullptr, 0, 4);
  EXPECT_LE(distance(want_var, var), 32 * rounding(DType::f32));
  EXPECT_LE(distance(piece(want_grad, begin, end), grad), 32 * rounding(DType::f32));
}

}  // namespace
}  // namespace lockstep::test
