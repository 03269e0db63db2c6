// The sums of batch norm groups, whichever way they take: GPU to GPU, by NCCL (NCCL_P2P_DISABLE=1 forces that) or by MPI.
#include "comm/exchange.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "support/device_array.hpp"

namespace lockstep {
namespace {

using test::DeviceArray;

std::unique_ptr<Communicator> all_ranks(Device& device) {
  return with_gpus(make_communicator(), device, [](const std::string&) {});
}

/// What rank r brings to call number `call`.
std::vector<float> numbers(int rank, std::int64_t call, std::int64_t count) {
  std::mt19937 bits(static_cast<unsigned>(1000 * call + rank + 1));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values) v = static_cast<float>(std::ldexp(static_cast<double>(bits()) / 4294967296.0 - 0.5, static_cast<int>(bits() % 20) - 10));
  return values;
}

/// got is the sum of the ranks [first, first + ranks), to the rounding of f32.
void expect_sum(const std::vector<float>& got, int first, int ranks, std::int64_t call) {
  std::vector<double> sum(got.size()), size(got.size());
  for (int r = first; r < first + ranks; ++r) {
    const std::vector<float> term = numbers(r, call, std::ssize(got));
    for (std::size_t i = 0; i < got.size(); ++i) sum[i] += term[i], size[i] += std::abs(term[i]);
  }
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(got[i] - sum[i]), (ranks - 1) * 0x1p-24 * size[i]) << "call " << call << ", value " << i << " of " << got.size();
}

/// One hash of all: equal on all ranks if the bits are.
void expect_equal_bits(Communicator& group, const std::vector<float>& values) {
  std::uint64_t hash = 14695981039346656037u;
  for (const float v : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    hash = (hash ^ bits) * 1099511628211u;
  }
  const auto number = static_cast<std::int64_t>(hash);
  EXPECT_EQ(group.max(number), group.min(number));
}

constexpr std::int64_t most = 4104;
constexpr std::int64_t sizes[] = {1, 2, 7, 130, 513, 514, 515, 1032, 4103, 4104};
std::int64_t size_of_call(std::int64_t call) { return sizes[static_cast<std::size_t>(call) % std::size(sizes)]; }

TEST(Exchange, SumsWithinEachGroup) {
  Device device;
  const auto comm = all_ranks(device);
  const int size = comm->size() % 2 == 0 ? 2 : 1, first = comm->rank() / size * size;
  const auto exchange = make_exchange(device, comm->split(size), 8);
  for (const std::int64_t count : {8, 3, 0}) {
    DeviceArray values(device, numbers(comm->rank(), count, count));
    exchange->sum(device, values.tensor());
    expect_sum(values.get(), first, size, count);
  }
  DeviceArray too_many(device, 9);
  EXPECT_THROW(exchange->sum(device, too_many.tensor()), Error);
}

TEST(Exchange, TakesTheDirectWayUnlessTheUserForbidsIt) {
  Device device;
  const auto comm = all_ranks(device);
  const auto exchange = make_exchange(device, comm->split(0), 8);
  const char* disable = std::getenv("NCCL_P2P_DISABLE");
  const bool is_forbidden = device.is_host() || comm->size() == 1 || (disable && std::atoi(disable) != 0);
  EXPECT_TRUE(!is_forbidden || !exchange->is_direct());
  if (comm->rank() == 0) std::printf("sums %s\n", exchange->is_direct() ? "from GPU to GPU" : "by the group's all-reduce");
  EXPECT_TRUE(!device.is_host() || exchange->is_recordable());
}

TEST(Exchange, ManyCallsOfManySizesAreTheFloat64SumsAndEqualBits) {
  Device device;
  const auto comm = all_ranks(device);
  const auto exchange = make_exchange(device, comm->split(0), most);
  for (std::int64_t call = 0; call < 200; ++call) {
    DeviceArray values(device, numbers(comm->rank(), call, size_of_call(call)));
    exchange->sum(device, values.tensor());
    const std::vector<float> got = values.get();
    expect_sum(got, 0, comm->size(), call);
    expect_equal_bits(*comm, got);
  }
}

TEST(Exchange, CallsThatNobodyWaitsBetweenDoNotMixThoughRanksDrift) {
  Device device;
  const auto comm = all_ranks(device);
  const auto exchange = make_exchange(device, comm->split(0), most);
  constexpr std::int64_t calls = 200;
  DeviceArray values(device, calls * most), ballast(device, 1 << 24);
  for (std::int64_t call = 0; call < calls; ++call) {
    const std::vector<float> mine = numbers(comm->rank(), call, size_of_call(call));
    device.copy_to_device(values.part(call * most, 1).data, mine.data(), mine.size() * sizeof(float));
    device.wait();
  }
  for (const int late : {-1, 0, comm->size() - 1}) {
    SCOPED_TRACE(late);
    DeviceArray work(device, calls * most);
    device.copy(work.tensor().data, values.tensor().data, values.tensor().bytes());
    for (std::int64_t call = 0; call < calls; ++call) {
      if (comm->rank() == late && call % 7 == 0) device.zero(ballast.tensor().data, ballast.tensor().bytes());   // its GPU is late
      if (comm->rank() == late && call % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));     // its host is
      exchange->sum(device, work.part(call * most, size_of_call(call)));
    }
    const std::vector<float> got = work.get();
    for (std::int64_t call = 0; call < calls; ++call)
      expect_sum({got.begin() + call * most, got.begin() + call * most + size_of_call(call)}, 0, comm->size(), call);
    expect_equal_bits(*comm, got);
  }
}

TEST(Exchange, RecordedAmongGradientSumsItReplays) {
  Device device;
  const auto comm = all_ranks(device);
  const auto exchange = make_exchange(device, comm->split(0), most);
  constexpr std::int64_t replays = 50, gradients = 300'000, each = 4 * most;   // four sums a replay, of unlike sizes
  constexpr std::int64_t counts[] = {most, 130, 1032, 7};
  const auto number_of = [](std::int64_t replay, int i) { return 10 * replay + i; };
  Allocation inputs = device.allocate_pinned(static_cast<std::size_t>(replays * each) * sizeof(float));
  for (std::int64_t replay = 0; replay < replays; ++replay)
    for (int i = 0; i < 4; ++i) {
      const std::vector<float> mine = numbers(comm->rank(), number_of(replay, i), counts[i]);
      std::memcpy(static_cast<float*>(inputs.data()) + replay * each + i * most, mine.data(), mine.size() * sizeof(float));
    }
  DeviceArray input(device, each), work(device, each), results(device, replays * each);
  DeviceArray gradient(device, numbers(comm->rank(), 9999, gradients)), summed(device, gradients);
  const auto step = [&] {
    device.copy(work.tensor().data, input.tensor().data, input.tensor().bytes());
    device.copy(summed.tensor().data, gradient.tensor().data, gradient.tensor().bytes());
    for (int i = 0; i < 4; ++i) {
      exchange->sum(device, work.part(i * most, counts[i]));
      device.join(StreamId::comm, StreamId::compute);
      comm->all_reduce_sum(device, summed.part(i * gradients / 4, gradients / 4), StreamId::comm);
    }
    device.join(StreamId::compute, StreamId::comm);
  };
  {
    const std::unique_ptr<Replay> replay = device.record(step, comm->is_recordable() && exchange->is_recordable());
    for (std::int64_t r = 0; r < replays; ++r) {
      device.copy_to_device(input.tensor().data, static_cast<float*>(inputs.data()) + r * each, input.tensor().bytes());
      replay->run();
      device.copy(results.part(r * each, each).data, work.tensor().data, work.tensor().bytes());
      if (comm->rank() == 0 && r == 20) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    device.wait();
  }
  const std::vector<float> got = results.get(), sums = summed.get();
  for (std::int64_t r = 0; r < replays; ++r)
    for (int i = 0; i < 4; ++i) {
      const auto begin = got.begin() + r * each + i * most;
      expect_sum({begin, begin + counts[i]}, 0, comm->size(), number_of(r, i));
    }
  expect_equal_bits(*comm, got);
  expect_sum(sums, 0, comm->size(), 9999);
  expect_equal_bits(*comm, sums);
}

TEST(Exchange, NotANumberReachesEveryRank) {
  Device device;
  const auto comm = all_ranks(device);
  const auto exchange = make_exchange(device, comm->split(0), most);
  std::vector<float> mine(130, 1.f);
  if (comm->rank() == comm->size() - 1) mine[77] = NAN, mine[78] = INFINITY;
  DeviceArray values(device, mine);
  exchange->sum(device, values.tensor());
  const std::vector<float> got = values.get();
  EXPECT_TRUE(std::isnan(got[77]));
  EXPECT_EQ(got[78], INFINITY);
  EXPECT_EQ(got[79], static_cast<float>(comm->size()));
}

TEST(Exchange, ComesAndGoes) {
  Device device;
  const auto comm = all_ranks(device);
  for (int i = 0; i < 10; ++i) {
    const auto exchange = make_exchange(device, comm->split(0), 16);
    DeviceArray values(device, numbers(comm->rank(), i, 16));
    exchange->sum(device, values.tensor());
    if (comm->rank() == i % comm->size()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (i % 2 == 0) expect_sum(values.get(), 0, comm->size(), i);
  }
}

/// Printed, not judged: one call in a recording of a ResNet-50 step's 106.
TEST(Exchange, SaysHowLongACallTakes) {
  Device device;
  if (device.is_host()) GTEST_SKIP() << "for GPUs";
  const auto comm = all_ranks(device);
  const auto exchange = make_exchange(device, comm->split(0), most);
  DeviceArray values(device, most);
  for (const std::int64_t count : {std::int64_t{136}, std::int64_t{1032}, most}) {
    constexpr int calls = 106, replays = 20;
    const std::unique_ptr<Replay> replay = device.record(
        [&] {
          for (int i = 0; i < calls; ++i) exchange->sum(device, values.part(0, count));
        },
        exchange->is_recordable());
    replay->run();
    device.wait();
    comm->barrier();
    const double start = stopwatch_seconds();
    for (int i = 0; i < replays; ++i) replay->run();
    device.wait();
    const double each = 1e6 * (stopwatch_seconds() - start) / (calls * replays);
    if (comm->rank() == 0) std::printf("%lld values, %d ranks: %.2f us a call\n", static_cast<long long>(count), comm->size(), each);
  }
}

}  // namespace
}  // namespace lockstep
