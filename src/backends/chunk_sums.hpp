// chunk_sums: long sums in chunks that only the shape decides, so that a result depends neither on threads nor on their timing.
// In: partial sums in workspace, one array a chunk.  Out: their sum, in the order of the chunks.
#pragma once
#include <algorithm>

#include "backends/conv.hpp"
#include "tensor/pack.hpp"
#include "tensor/views.hpp"

namespace lockstep {

/// to[i] = from[0][i] + from[1][i] + ..., or is added to what is there.
template <class To>
void add_chunks(const Device& device, const float* from, std::int64_t chunks, To* out, std::int64_t count, bool adds) {
  Kokkos::parallel_for("conv.add_chunks", range(device, count), KOKKOS_LAMBDA(std::int64_t i) {
    float sum = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += from[chunk * count + i];
    out[i] = To(adds ? static_cast<float>(out[i]) + sum : sum);
  });
}

inline std::int64_t bias_chunks(const ConvProblem& problem) {
  const std::int64_t pixels = problem.n * problem.p() * problem.q();
  return runs_on_host ? std::clamp<std::int64_t>(pixels / 64, 1, 256) : std::clamp<std::int64_t>(pixels / 512, 1, 264);
}
inline std::size_t bias_workspace_bytes(const ConvProblem& problem) {
  return problem.has_bias ? static_cast<std::size_t>(bias_chunks(problem) * problem.k) * sizeof(float) : 0;
}

/// On a CPU: partial[chunk][k] = sum of grad_y over a chunk of the pixels.
template <class T>
void conv_bias_sums(const Device& device, const T* from, std::int64_t pixels, std::int64_t k, std::int64_t chunks, float* partial) {
  constexpr int width = 16;              // channels of a work item
  const std::int64_t pixels_each = (pixels + chunks - 1) / chunks, blocks = (k + width - 1) / width;
  Kokkos::parallel_for("conv.grad_bias", range(device, chunks * blocks), KOKKOS_LAMBDA(std::int64_t item) {
    const std::int64_t chunk = item / blocks, first = item % blocks * width;
    const std::int64_t begin = chunk * pixels_each, end = begin + pixels_each < pixels ? begin + pixels_each : pixels;
    const int channels = k - first < width ? static_cast<int>(k - first) : width;
    float sum[width] = {};
    if (channels == width) {
      for (std::int64_t pixel = begin; pixel < end; ++pixel)
        for (int i = 0; i < width; ++i) sum[i] += static_cast<float>(from[pixel * k + first + i]);
    } else {
      for (std::int64_t pixel = begin; pixel < end; ++pixel)
        for (int i = 0; i < channels; ++i) sum[i] += static_cast<float>(from[pixel * k + first + i]);
    }
    for (int i = 0; i < channels; ++i) partial[chunk * k + first + i] = sum[i];
  });
}

/// On a GPU: to[chunk][k] = that sum, or is added to what is there.  A team takes a chunk of up to 64 columns of `width` channels, its threads rows.
template <int width, class T>
void conv_bias_sums_by_teams(const Device& device, const T* from, std::int64_t pixels, std::int64_t k, std::int64_t chunks, float* to, bool adds) {
  using Packet = Pack<T, width>;
  constexpr int threads = 256;
  const int columns = static_cast<int>(std::min<std::int64_t>(k / width, 64)), groups = threads / columns;
  const std::int64_t pixels_each = (pixels + chunks - 1) / chunks, blocks = (k / width + columns - 1) / columns;
  auto policy = teams(device, chunks * blocks, threads);
  policy.set_scratch_size(0, Kokkos::PerTeam(threads * width * static_cast<int>(sizeof(float))));
  Kokkos::parallel_for("conv.grad_bias", policy, KOKKOS_LAMBDA(const Teams::member_type& team) {
    float* const sums = static_cast<float*>(team.team_shmem().get_shmem(threads * width * sizeof(float)));
    const std::int64_t chunk = team.league_rank() / blocks, first = team.league_rank() % blocks * columns;
    const int group = team.team_rank() / columns;
    const std::int64_t column = first + team.team_rank() % columns, end = (chunk + 1) * pixels_each < pixels ? (chunk + 1) * pixels_each : pixels;
    float sum[width] = {};
    if (group < groups && column < k / width) {
      for (std::int64_t pixel = chunk * pixels_each + group; pixel < end; pixel += groups) {
        const Packet packet = reinterpret_cast<const Packet*>(from + pixel * k)[column];
        for (int i = 0; i < width; ++i) sum[i] += static_cast<float>(packet.of[i]);
      }
    }
    for (int i = 0; i < width; ++i) sums[team.team_rank() * width + i] = sum[i];
    team.team_barrier();
    for (int i = team.team_rank(); i < columns * width && first * width + i < k; i += threads) {
      float all = 0;
      for (int g = 0; g < groups; ++g) all += sums[g * columns * width + i];
      float& out = to[chunk * k + first * width + i];
      out = adds ? out + all : all;
    }
  });
}
/// to[k] = from[0][k] + from[1][k] + ..., or is added to what is there; a team a channel.
inline void conv_bias_add_chunks(const Device& device, const float* from, std::int64_t chunks, float* to, std::int64_t k, bool adds) {
  Kokkos::parallel_for("conv.grad_bias_chunks", teams(device, k, 128), KOKKOS_LAMBDA(const Teams::member_type& team) {
    const std::int64_t i = team.league_rank();
    float all = 0;
    Kokkos::parallel_reduce(Kokkos::TeamThreadRange(team, chunks), [&](std::int64_t chunk, float& sum) { sum += from[chunk * k + i]; }, all);
    if (team.team_rank() == 0) to[i] = adds ? to[i] + all : all;
  });
}

/// grad_bias[k] = sum of grad_y [n, p, q, k] over n, p, q, or is added to what is there.  partial: bias_workspace_bytes.
template <class T>
void conv_grad_bias(const Device& device, const ConvProblem& problem, Tensor grad_y, Tensor grad_bias, float* partial, bool adds) {
  const std::int64_t k = problem.k, pixels = grad_y.size() / k, chunks = bias_chunks(problem);
  const T* const from = grad_y.as<T>();
  float* const to = grad_bias.as<float>();
  if constexpr (runs_on_host) {
    conv_bias_sums(device, from, pixels, k, chunks, partial);
    add_chunks(device, partial, chunks, to, k, adds);
  } else {
    constexpr int width = 16 / static_cast<int>(sizeof(T));
    float* const sums = chunks == 1 ? to : partial;
    const bool adds_first = chunks == 1 && adds;
    k % width == 0 ? conv_bias_sums_by_teams<width>(device, from, pixels, k, chunks, sums, adds_first) : conv_bias_sums_by_teams<1>(device, from, pixels, k, chunks, sums, adds_first);
    if (chunks > 1) conv_bias_add_chunks(device, partial, chunks, to, k, adds);
  }
}

}  // namespace lockstep
