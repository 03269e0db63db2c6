// views: a tensor as Kokkos sees it, and the ranges that kernels run over.  Included by kernels only.
#pragma once
#include <Kokkos_Core.hpp>

#include "tensor/device.hpp"
#include "tensor/tensor.hpp"

namespace lockstep {

using ExecutionSpace = Kokkos::DefaultExecutionSpace;
using MemorySpace = ExecutionSpace::memory_space;

/// True where kernels run on the host: kernels choose their shape of work by it, at compile time.
inline constexpr bool runs_on_host = Kokkos::SpaceAccessibility<Kokkos::HostSpace, MemorySpace>::accessible;

/// The execution space of the device's current stream.
const ExecutionSpace& execution_space(const Device& device);

template <class T>
using FlatView = Kokkos::View<T*, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class T>
using ImageView = Kokkos::View<T****, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

template <class T>
FlatView<T> flat(const Tensor& t) { return FlatView<T>(t.as<T>(), static_cast<std::size_t>(t.size())); }
template <class T>
ImageView<T> image(const Tensor& t) { return ImageView<T>(t.as<T>(), t.shape.n, t.shape.h, t.shape.w, t.shape.c); }

using Range = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>;

/// n work items on the device's current stream.  HintLightWeight: a launch through constant memory could not be recorded.
inline auto range(const Device& device, std::int64_t n) {
  return Kokkos::Experimental::require(Range(execution_space(device), 0, n), Kokkos::Experimental::WorkItemProperty::HintLightWeight);
}

}  // namespace lockstep
