#include "backends/cudnn_timing.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tensor/cuda_check.hpp"
#include "tensor/views.hpp"

namespace lockstep {

/// Small numbers of both signs, as if drawn: kernels that are timed on zeros draw less power and run faster than in training.
template <class T>
void conv_fill(const Device& device, T* to, std::int64_t count) {
  Kokkos::parallel_for("conv.fill", range(device, count), KOKKOS_LAMBDA(std::int64_t i) {
    const std::int64_t last_first = count - 1 - i;         // what kernels read first lies in the cache then, as batch norm's passes leave it
    auto bits = static_cast<std::uint32_t>(i);
    for (int round = 0; round < 2; ++round) bits = (bits ^ bits >> 16) * 0x45d9f3bu;
    to[last_first] = T(static_cast<float>(static_cast<std::int32_t>(bits >> 20) - 2048) * 0x1p-12f);
  });
}

/// sums[0] += (a - b)^2, sums[1] += b^2, over all elements, in f64.
template <class T>
void conv_compare(const Device& device, const T* a, const T* b, std::int64_t count, double* sums) {
  Kokkos::parallel_for("conv.compare", teams(device, 256, 256), KOKKOS_LAMBDA(const Teams::member_type& team) {
    const std::int64_t each = (count + team.league_size() - 1) / team.league_size(), begin = team.league_rank() * each;
    const std::int64_t end = begin + each < count ? begin + each : count;
    double difference = 0, size = 0;
    Kokkos::parallel_reduce(Kokkos::TeamThreadRange(team, begin, begin < end ? end : begin), [&](std::int64_t i, double& d, double& s) {
      const double y = static_cast<float>(b[i]), x = static_cast<float>(a[i]);
      d += (x - y) * (x - y), s += y * y;
    }, difference, size);
    if (team.team_rank() == 0) Kokkos::atomic_add(&sums[0], difference), Kokkos::atomic_add(&sums[1], size);
  });
}

namespace {

/// Milliseconds that fn takes on the device's current stream, each time after `before`: the best of a few runs after a first; of fewer, if those took
/// longer than `hopeless`.
double device_milliseconds(Device& device, const std::function<void()>& before, const std::function<void()>& fn, double hopeless) {
  const auto stream = static_cast<cudaStream_t>(device.native_stream(device.current()));
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaEventCreate(&begin));
  check_cuda(cudaEventCreate(&end));
  float best = 0;
  constexpr double loading = 50;         // the first run also loads the kernels
  for (int run = 0; run < 5; ++run) {
    before();
    check_cuda(cudaEventRecord(begin, stream));
    fn();
    check_cuda(cudaEventRecord(end, stream));
    check_cuda(cudaEventSynchronize(end));
    float took = 0;
    check_cuda(cudaEventElapsedTime(&took, begin, end));
    if (run < 2 || took < best) best = took;
    if (best > (run == 0 ? 4 * hopeless + loading : hopeless)) break;
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return best;
}

Allocation filled(Device& device, const Shape& shape, DType dtype) {
  Allocation memory = device.allocate(static_cast<std::size_t>(shape.size()) * size_of(dtype));
  dispatch(dtype, [&]<class T>(T) { conv_fill(device, static_cast<T*>(memory.data()), shape.size()); });
  return memory;
}

}  // namespace

PlanTimer::PlanTimer(Device& device, const PlanRequest& request)
    : device_(device), request_(request), x_(filled(device, request.problem.input(), request.problem.dtype)), weight_(filled(device, request.problem.weight(), request.problem.dtype)),
      y_(filled(device, request.problem.output(), request.problem.dtype)) {
  constexpr std::size_t cache_bytes = std::size_t{64} << 20;   // at least a GPU's second level
  if (device.free_bytes() > 16 * cache_bytes) other_ = device.allocate(cache_bytes);
}

void PlanTimer::make_cache_as_in_training() {
  const auto fill = [&](const Allocation& memory) {
    dispatch(request_.problem.dtype, [&]<class T>(T) { conv_fill(device_, static_cast<T*>(memory.data()), static_cast<std::int64_t>(memory.bytes() / sizeof(T))); });
  };
  if (other_.bytes() > 0) fill(other_);
  fill(request_.direction == ConvDirection::forward ? x_ : y_);
}

PlanOperands PlanTimer::operands_for(const ConvPlan& plan) {
  const std::size_t sums = static_cast<std::size_t>(plan.sum_parts() * 2 * request_.problem.k) * sizeof(float);
  if (request_.sums && sums_.bytes() < sums) sums_ = device_.allocate(sums);
  if (workspace_.bytes() < plan.workspace_bytes()) workspace_ = device_.allocate(plan.workspace_bytes());
  return {.x = x_.data(), .weight = weight_.data(), .y = y_.data(), .sums = static_cast<float*>(sums_.data()), .workspace = workspace_.data()};
}

double PlanTimer::milliseconds(const ConvPlan& plan, double hopeless) {
  const PlanOperands operands = operands_for(plan);
  return device_milliseconds(device_, [&] { make_cache_as_in_training(); }, [&] { plan.run(device_, operands); }, hopeless);
}

double PlanTimer::milliseconds_of_a_pass_over_y() {
  // A copy of one half of y over the other moves as many bytes as summing y reads.
  const std::size_t half = y_.bytes() / 2;
  return device_milliseconds(device_, [] {}, [&] { device_.copy(y_.data(), static_cast<char*>(y_.data()) + half, half); }, endless);
}

TimedPlan PlanTimer::fastest(const std::vector<PlanOffer>& offers) {
  // Favourites come first.  cuDNN's engines for any problem come last, and may take seconds where the others take a millisecond.
  constexpr double hopeless_ratio = 4, most_seconds = 1.5;
  const double start = stopwatch_seconds();
  TimedPlan best, strict;
  int hopeless = 0;
  for (const PlanOffer& offer : offers) {
    if (offer.is_strict && best.plan && (offer.is_last_resort || hopeless == 3 || stopwatch_seconds() - start > most_seconds)) continue;
    auto plan = offer.make();
    if (!plan) continue;
    const double took = milliseconds(*plan, best.plan ? 1.2 * best.milliseconds : endless);
    if (best.plan && took > hopeless_ratio * best.milliseconds) ++hopeless;
    if (best.plan && took >= best.milliseconds) continue;
    if (!offer.is_strict && best.plan) {
      if (!is_as_exact(*plan, strict.plan ? *strict.plan : *best.plan)) continue;
      if (!strict.plan) strict = std::move(best);
    }
    best = {std::move(plan), took};
  }
  return best;
}

bool PlanTimer::is_as_exact(const ConvPlan& plan, const ConvPlan& strict) {
  if (request_.direction == ConvDirection::grad_input) return false;     // none is known; x would be overwritten by what is compared
  const bool is_forward = request_.direction == ConvDirection::forward;
  void* const result = is_forward ? y_.data() : weight_.data();
  const std::size_t bytes = is_forward ? y_.bytes() : weight_.bytes();
  const Allocation exact = device_.allocate(bytes), sums = device_.allocate(2 * sizeof(double));
  strict.run(device_, operands_for(strict));
  device_.copy(exact.data(), result, bytes);
  plan.run(device_, operands_for(plan));
  dispatch(request_.problem.dtype, [&]<class T>(T) {
    conv_compare(device_, static_cast<const T*>(result), static_cast<const T*>(exact.data()), static_cast<std::int64_t>(bytes / sizeof(T)), static_cast<double*>(sums.data()));
  });
  double squares[2] = {};
  device_.copy_to_host(squares, sums.data(), sizeof squares);
  const double rounding = request_.problem.dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
  return std::sqrt(squares[0] / squares[1]) <= 3 * rounding;
}

}  // namespace lockstep
