// On any number of ranks: what the ranks agree on is what one process that knows all of them would compute.
#include "comm/communicator.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "support/device_array.hpp"

namespace lockstep {
namespace {

/// What rank r brings: numbers of very different sizes, so that another order of adding gives other bits.
template <class T>
std::vector<T> numbers(int rank, std::int64_t count) {
  std::mt19937 bits(static_cast<unsigned>(17 + rank));
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& v : values) v = static_cast<T>(std::ldexp(static_cast<double>(bits()) / 4294967296.0 - 0.5, static_cast<int>(bits() % 40) - 20));
  return values;
}

/// The documented tree, plainly: pairs first where the ranks are no power of two, then a perfect tree, neighbours first.
template <class T>
std::vector<T> tree_reference(int ranks, std::int64_t count) {
  const auto add = [](std::vector<T> a, const std::vector<T>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  };
  int leaves = 1;
  while (2 * leaves <= ranks) leaves *= 2;
  std::vector<std::vector<T>> level;
  for (int r = 0; r < ranks; ++r)
    if (r < 2 * (ranks - leaves)) {
      level.push_back(add(numbers<T>(r, count), numbers<T>(r + 1, count)));
      ++r;
    } else {
      level.push_back(numbers<T>(r, count));
    }
  while (level.size() > 1) {
    std::vector<std::vector<T>> next;
    for (std::size_t i = 0; i < level.size(); i += 2) next.push_back(add(level[i], level[i + 1]));
    level = std::move(next);
  }
  return level[0];
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

std::vector<float> all_reduced(Communicator& comm, Device& device, std::int64_t count) {
  const test::DeviceArray values(device, numbers<float>(comm.rank(), count));
  comm.all_reduce_sum(device, values.tensor(), StreamId::comm);
  return values.get();
}

/// Each value is the float64 sum, but for the rounding of `depth` additions one after another.
void expect_float64_sum(const std::vector<float>& got, int ranks, double depth) {
  std::vector<double> sum(got.size()), size(got.size());
  for (int r = 0; r < ranks; ++r) {
    const std::vector<float> term = numbers<float>(r, std::ssize(got));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += term[i], size[i] += std::abs(term[i]);
  }
  for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_LE(std::abs(got[i] - sum[i]), depth * 0x1p-24 * size[i]) << i;
}

TEST(Communicator, AllReduceIsTheDocumentedTreeBitForBitAtEveryLength) {
  Device device;
  const auto comm = make_communicator();
  for (const std::int64_t count : {0, 1, 3, 4095, 4096, 4097, 100001, 1000007})
    EXPECT_TRUE(same_bits(all_reduced(*comm, device, count), tree_reference<float>(comm->size(), count))) << count;
}

TEST(Communicator, AllReduceIsTheFloat64SumWithinRounding) {
  Device device;
  const auto comm = make_communicator();
  expect_float64_sum(all_reduced(*comm, device, 100003), comm->size(), std::ceil(std::log2(comm->size())));   // each level of the tree rounds once
}

/// NCCL in a GPU build, which adds in an order of its own.
TEST(Communicator, OnGpusAllReduceIsTheFloat64SumAndEqualBits) {
  Device device;
  const auto comm = with_gpus(make_communicator(), device, [](const std::string&) {});
  for (const std::int64_t count : {1, 4097, 1000007}) {
    const std::vector<float> got = all_reduced(*comm, device, count);
    expect_float64_sum(got, comm->size(), comm->size() - 1);
    const auto group = comm->split(0);
    EXPECT_TRUE(same_bits(all_reduced(*group, device, count), got)) << "a group of all, " << count;
    std::vector<float> of_first = got;
    comm->broadcast(of_first.data(), of_first.size() * sizeof(float), 0);
    EXPECT_TRUE(same_bits(of_first, got)) << count;
  }
}

TEST(Communicator, TimingDoesNotChangeTheBits) {
  Device device;
  const auto comm = make_communicator();
  const std::vector<float> first = all_reduced(*comm, device, 300007);
  for (int late = 0; late < comm->size(); ++late) {
    if (comm->rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_TRUE(same_bits(all_reduced(*comm, device, 300007), first)) << "rank " << late << " was late";
  }
}

TEST(Communicator, SumsOfDoublesAndIntegersFollowTheSameTree) {
  const auto comm = make_communicator();
  for (const std::int64_t count : {1, 5, 40001}) {
    std::vector<double> values = numbers<double>(comm->rank(), count);
    comm->sum(values);
    EXPECT_TRUE(same_bits(values, tree_reference<double>(comm->size(), count))) << count;
  }
  const std::int64_t n = comm->size();
  std::vector<std::int64_t> integers = {comm->rank(), std::int64_t{1} << 60, -comm->rank()};
  if (comm->size() > 4) integers[1] = 0;
  comm->sum(integers);
  EXPECT_EQ(integers, (std::vector<std::int64_t>{n * (n - 1) / 2, n > 4 ? 0 : n << 60, -n * (n - 1) / 2}));
  EXPECT_EQ(comm->sum(0.5), 0.5 * static_cast<double>(n));
  EXPECT_EQ(comm->max(-comm->rank()), 0);
  EXPECT_EQ(comm->min(-comm->rank()), 1 - n);
}

TEST(Communicator, NotANumberReachesEveryRank) {
  Device device;
  const auto comm = make_communicator();
  std::vector<float> mine(10, 1.f);
  if (comm->rank() == comm->size() - 1) mine[7] = NAN;
  const test::DeviceArray array(device, mine);
  comm->all_reduce_sum(device, array.tensor(), StreamId::comm);
  const std::vector<float> values = array.get();
  EXPECT_TRUE(std::isnan(values[7]));
  EXPECT_EQ(values[6], static_cast<float>(comm->size()));
}

TEST(Communicator, LongAndEmptyTextsArriveWhole) {
  const auto comm = make_communicator();
  const auto text_of_rank = [](int r) { return std::string(static_cast<std::size_t>(r % 2 ? 3000000 + r : 0), static_cast<char>('a' + r)); };
  const std::vector<std::string> texts = comm->gather(text_of_rank(comm->rank()));
  ASSERT_EQ(texts.size(), comm->rank() == 0 ? static_cast<std::size_t>(comm->size()) : 0u);
  for (std::size_t r = 0; r < texts.size(); ++r) EXPECT_TRUE(texts[r] == text_of_rank(static_cast<int>(r))) << r;
  for (int root = 0; root < comm->size(); ++root)
    EXPECT_TRUE(comm->broadcast(comm->rank() == root ? text_of_rank(root) : "mine", root) == text_of_rank(root)) << root;
}

TEST(Communicator, AnAgreementIsTheLargestValueAndLetsOtherCallsPassBetween) {
  Device device;
  const auto comm = make_communicator();
  for (int round = 0; round < 3; ++round) {
    comm->start_agree(comm->rank() == comm->size() - 1 ? 15 + round : 0);
    const std::vector<float> values = all_reduced(*comm, device, 50000);
    EXPECT_TRUE(same_bits(values, tree_reference<float>(comm->size(), 50000)));
    comm->barrier();
    EXPECT_EQ(comm->finish_agree(), 15 + round);
  }
  EXPECT_THROW(comm->finish_agree(), Error);
  comm->start_agree(0);                                     // and an unfinished one does not hinder the end
}

TEST(Communicator, SplitMakesConsecutiveGroupsAndRefusesOthers) {
  const auto comm = make_communicator();
  const auto all = comm->split(0);
  EXPECT_EQ(all->size(), comm->size());
  const int size = comm->size() % 2 == 0 ? 2 : 1;
  const auto group = comm->split(size);
  EXPECT_EQ(group->size(), size);
  EXPECT_EQ(group->rank(), comm->rank() % size);
  EXPECT_EQ(group->sum(comm->rank()), size == 2 ? 2 * (comm->rank() / 2 * 2) + 1 : comm->rank());
  EXPECT_THROW(comm->split(comm->size() + 1), Error);
  EXPECT_THROW(comm->split(-1), Error);
}

TEST(Communicator, CountsTheCallsOfItsGroupsToo) {
  const auto comm = make_communicator();
  std::atomic<std::int64_t> calls{0};
  comm->count_calls(&calls);
  comm->barrier();
  const auto all = comm->split(0);
  all->barrier();
  EXPECT_EQ(calls.load(), 3);
}

TEST(Communicator, KnowsTheRanksOfItsHost) {
  const auto comm = make_communicator();
  EXPECT_EQ(comm->local_size(), comm->size());              // ctest's ranks share one
  EXPECT_EQ(comm->local_rank(), comm->rank());
  EXPECT_EQ(rank_name(), text_of("rank ", comm->rank(), " of ", comm->size(), ", ", host_name()));
}

TEST(Launch, TheTableHasALineAHost) {
  const auto comm = make_communicator();
  const std::string table = describe_ranks(*comm, 1);
  const std::string ranks = comm->size() == 1 ? "rank 0" : text_of("ranks 0-", comm->size() - 1);
  const std::string line = ranks + ": " + host_name() + (comm->size() == 1 ? ", 1 thread" : ", 1 thread each");
  EXPECT_EQ(table.substr(0, line.size()), comm->rank() > 0 ? "" : line);
  EXPECT_EQ(table.find('\n'), std::string::npos);
  EXPECT_TRUE(table.size() == std::min(table.size(), line.size()) || table.find(" are slow; start at most ") != std::string::npos) << table;   // four ranks on two CPUs
  EXPECT_NE(make_communicator()->broadcast(describe_ranks(*comm, 1000), 0).find("use srun --cpus-per-task"), std::string::npos);
}

TEST(Launch, ARankWithoutAGpuOfItsOwnIsExplainedOnAll) {
  const auto comm = make_communicator();
  const auto explanation = [&](const VisibleGpus& visible) -> std::string {
    try {
      choose_gpu(*comm, visible);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), exit_bad_input);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(choose_gpu(*comm, {{"0", "1", "2", "3"}, ""}), comm->rank());
  EXPECT_EQ(choose_gpu(*comm, {{std::to_string(comm->rank())}, ""}), 0);
  const bool is_last = comm->rank() == comm->size() - 1;
  EXPECT_EQ(explanation(is_last ? VisibleGpus{{}, "no driver."} : VisibleGpus{{"0", "1", "2", "3"}, ""}),
            text_of("rank ", comm->size() - 1, " on ", host_name(), ": no driver."));
  if (comm->size() == 1) return;
  const std::string words = explanation({{"0"}, ""});
  EXPECT_EQ(words.rfind(text_of("rank 1 on ", host_name(), " has no GPU of its own: it sees 1 GPU, taken by rank 0. Start at most"), 0), 0u) << words;
}

TEST(Launch, ATextThatDiffersIsAnErrorOnAllRanksThatNamesTheLine) {
  const auto comm = make_communicator();
  EXPECT_NO_THROW(require_same(*comm, "the build", "abc"));
  if (comm->size() == 1) return;
  try {
    require_same(*comm, "the input", comm->rank() == 1 ? "[data]\nseed = 2\n" : "[data]\nseed = 1\n");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), exit_bad_input);
    EXPECT_NE(std::string(error.what()).find("Rank 0 on " + host_name() + ": seed = 1; rank 1 on " + host_name() + ": seed = 2."), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lockstep
