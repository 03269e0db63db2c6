// views: a tensor as kernels see it, and the ranges that they run over.  Included by kernels only.
#pragma once
#include <Kokkos_Core.hpp>

#include "tensor/device.hpp"
#include "tensor/tensor.hpp"

namespace lockstep {

using ExecutionSpace = Kokkos::DefaultExecutionSpace;

/// True where kernels run on the host: kernels choose their shape of work by it, at compile time.
inline constexpr bool runs_on_host = Kokkos::SpaceAccessibility<Kokkos::HostSpace, ExecutionSpace::memory_space>::accessible;

/// The execution space of the device's current stream.
const ExecutionSpace& execution_space(const Device& device);

/// A tensor's elements in memory order, to be captured by kernels.  Not a Kokkos::View: in C++20 its empty members are laid out differently by
/// g++ and by nvcc's device pass, and captured ones were seen to read wild addresses on the GPU (Kokkos 4.7, CUDA 13.0).
template <class T>
struct Flat {
  T* data;
  std::int64_t count;
  KOKKOS_FUNCTION T& operator()(std::int64_t i) const { return data[i]; }
  KOKKOS_FUNCTION std::int64_t size() const { return count; }
};
template <class T>
Flat<T> flat(const Tensor& t) { return {t.as<T>(), t.size()}; }

using Range = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>;

/// n work items on the device's current stream.  HintLightWeight: a launch through constant memory could not be recorded.
inline auto range(const Device& device, std::int64_t n) {
  return Kokkos::Experimental::require(Range(execution_space(device), 0, n), Kokkos::Experimental::WorkItemProperty::HintLightWeight);
}

/// n teams on the device's current stream, of so many threads on a GPU, one on a CPU.
using Teams = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>;
inline auto teams(const Device& device, std::int64_t n, int threads) {
  return Kokkos::Experimental::require(Teams(execution_space(device), static_cast<int>(n), runs_on_host ? 1 : threads), Kokkos::Experimental::WorkItemProperty::HintLightWeight);
}

}  // namespace lockstep
