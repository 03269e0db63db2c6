// chunk_sums: long sums in chunks that only the shape decides, so that a result depends neither on threads nor on their timing.
// In: partial sums in workspace, one array a chunk.  Out: their sum, in the order of the chunks.
#pragma once
#include <algorithm>

#include "backends/conv.hpp"
#include "tensor/views.hpp"

namespace lockstep {

/// to[i] = from[0][i] + from[1][i] + ..., or is added to what is there.  to: f32 [any].
inline void add_chunks(const Device& device, const float* from, std::int64_t chunks, Tensor to, bool adds) {
  float* const out = to.as<float>();
  const std::int64_t count = to.size();
  Kokkos::parallel_for("conv.add_chunks", range(device, count), KOKKOS_LAMBDA(std::int64_t i) {
    float sum = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += from[chunk * count + i];
    out[i] = adds ? out[i] + sum : sum;
  });
}

inline std::int64_t bias_chunks(const ConvProblem& problem) { return std::clamp<std::int64_t>(problem.n * problem.p() * problem.q() / 64, 1, 256); }
inline std::size_t bias_workspace_bytes(const ConvProblem& problem) {
  return problem.has_bias ? static_cast<std::size_t>(bias_chunks(problem) * problem.k) * sizeof(float) : 0;
}

/// grad_bias[k] = sum of grad_y [n, p, q, k] over n, p, q.  partial: bias_workspace_bytes.
template <class T>
void conv_grad_bias(const Device& device, const ConvProblem& problem, Tensor grad_y, Tensor grad_bias, float* partial, bool adds) {
  constexpr int width = runs_on_host ? 16 : 1;   // channels of a work item
  const T* const from = grad_y.as<T>();
  const std::int64_t k = problem.k, pixels = grad_y.size() / k, chunks = bias_chunks(problem), pixels_each = (pixels + chunks - 1) / chunks;
  const std::int64_t blocks = (k + width - 1) / width;
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
  add_chunks(device, partial, chunks, grad_bias, adds);
}

}  // namespace lockstep
