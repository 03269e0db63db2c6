// lanes: how a kernel walks over [rows, c].  A work item takes a few rows of neighbouring channels: sixteen on a CPU, where the compiler keeps
// them in vector registers; 16 bytes on a GPU, its widest access, and neighbouring threads take neighbouring ones.
// In: a body with run<width>(first row, end row, chunk, first channel).  Out: one call for each piece, in parallel.
#pragma once
#include <cstring>
#include <type_traits>

#include "tensor/views.hpp"
#ifdef __CUDACC__
#include "tensor/early_launch.hpp"
#endif

namespace lockstep {

/// Channels of a work item on arrays of T.
template <class T>
inline constexpr int lane_width = runs_on_host ? 16 : 16 / static_cast<int>(sizeof(T));

/// [rows, c] in chunks of rows and blocks of channels.  A pure function of the shape: sums taken chunk by chunk do not depend on threads.
struct RowCut {
  std::int64_t rows = 0, c = 1, rows_each = 1;
  LOCKSTEP_FUNCTION std::int64_t chunks() const { return (rows + rows_each - 1) / rows_each; }
  LOCKSTEP_FUNCTION std::int64_t blocks(int width) const { return (c + width - 1) / width; }
};
inline RowCut cut_rows(const Shape& x, std::int64_t rows_each) { return {x.n * x.h * x.w, x.c, rows_each}; }

/// Neighbouring channels of one row, as float: four to a vector of GCC's and Clang's own, which needs nothing beyond the base instruction set.
/// (Left to the compiler, loops over sixteen floats are unrolled before they are vectorized, and the sums below run three times slower.)
using FourLanes = float __attribute__((vector_size(16)));
template <int width>
struct Lanes {
  static constexpr int each = runs_on_host && width > 1 ? 4 : 1, parts = width / each;
  std::conditional_t<each == 4, FourLanes, float> v[parts];
};

/// What a GPU reads and writes at once: 16 bytes, or all there is.
template <int bytes>
struct alignas(bytes) Packet {
  std::uint32_t words[bytes / 4];
};
template <class T, int width>
inline constexpr int packet_bytes = width * static_cast<int>(sizeof(T)) < 16 ? width * static_cast<int>(sizeof(T)) : 16;

template <int width>
LOCKSTEP_FUNCTION Lanes<width> zeros() {
  return Lanes<width>{};
}
template <int width, class T>
LOCKSTEP_FUNCTION Lanes<width> load(const T* from) {
  Lanes<width> r;
  if constexpr (width == 1) {
    r.v[0] = static_cast<float>(from[0]);
  } else if constexpr (!runs_on_host) {
    using Piece = Packet<packet_bytes<T, width>>;
    constexpr int pieces = width * static_cast<int>(sizeof(T)) / static_cast<int>(sizeof(Piece));
    Piece raw[pieces];
    T here[width];
    for (int i = 0; i < pieces; ++i) raw[i] = reinterpret_cast<const Piece*>(from)[i];
    memcpy(here, raw, sizeof raw);
    for (int i = 0; i < width; ++i) r.v[i] = static_cast<float>(here[i]);
  } else if constexpr (std::is_same_v<T, float>) {
    memcpy(&r, from, sizeof r);
  } else {
    for (int i = 0; i < width; ++i) r.v[i / 4][i % 4] = static_cast<float>(from[i]);
  }
  return r;
}
/// What load reads, not yet converted: a GPU asks for several rows at once before it computes with the first.
template <int width, class T>
struct Raw {
  static constexpr bool is_packet = !runs_on_host && width * sizeof(T) == 16;
  std::conditional_t<is_packet, Packet<16>, Lanes<width>> value;
  LOCKSTEP_FUNCTION Lanes<width> lanes() const {
    if constexpr (is_packet) return load<width>(reinterpret_cast<const T*>(&value));
    else return value;
  }
};
template <int width, class T>
LOCKSTEP_FUNCTION Raw<width, T> load_raw(const T* from) {
  if constexpr (Raw<width, T>::is_packet) return {*reinterpret_cast<const Packet<16>*>(from)};
  else return {load<width>(from)};
}
/// Of what no kernel reads soon: on a GPU its cache lines are the first to go.
template <int width, class T>
LOCKSTEP_FUNCTION Raw<width, T> load_raw_last(const T* from) {
#ifdef __CUDA_ARCH__
  if constexpr (Raw<width, T>::is_packet) {
    const int4 raw = __ldcs(reinterpret_cast<const int4*>(from));
    Raw<width, T> r;
    memcpy(&r.value, &raw, sizeof raw);
    return r;
  }
#endif
  return load_raw<width>(from);
}
/// Rows that a work item asks for at once: enough bytes on their way to keep a GPU's memory busy.
inline constexpr int rows_together = runs_on_host ? 1 : 4;
/// body(first row, how many: a constant) for all rows from begin to end, `together` at a time.
template <int together = rows_together, class Body>
LOCKSTEP_FUNCTION void for_rows(std::int64_t begin, std::int64_t end, const Body& body) {
  std::int64_t row = begin;
  if constexpr (together > 1)
    for (; row + together <= end; row += together) body(row, std::integral_constant<int, together>());
  for (; row < end; ++row) body(row, std::integral_constant<int, 1>());
}

template <int width, class T>
LOCKSTEP_FUNCTION void store(T* to, const Lanes<width>& a) {
  if constexpr (width == 1) {
    to[0] = T(a.v[0]);
  } else if constexpr (!runs_on_host) {
    using Piece = Packet<packet_bytes<T, width>>;
    constexpr int pieces = width * static_cast<int>(sizeof(T)) / static_cast<int>(sizeof(Piece));
    Piece raw[pieces];
    T here[width];
    for (int i = 0; i < width; ++i) here[i] = T(a.v[i]);
    memcpy(raw, here, sizeof raw);
    for (int i = 0; i < pieces; ++i) reinterpret_cast<Piece*>(to)[i] = raw[i];
  } else if constexpr (std::is_same_v<T, float>) {
    memcpy(to, &a, sizeof a);
  } else {
    for (int i = 0; i < width; ++i) to[i] = T(static_cast<float>(a.v[i / 4][i % 4]));
  }
}
template <int width>
LOCKSTEP_FUNCTION Lanes<width> operator+(const Lanes<width>& a, const Lanes<width>& b) {
  Lanes<width> r;
  for (int p = 0; p < r.parts; ++p) r.v[p] = a.v[p] + b.v[p];
  return r;
}
template <int width>
LOCKSTEP_FUNCTION Lanes<width> operator-(const Lanes<width>& a, const Lanes<width>& b) {
  Lanes<width> r;
  for (int p = 0; p < r.parts; ++p) r.v[p] = a.v[p] - b.v[p];
  return r;
}
template <int width>
LOCKSTEP_FUNCTION Lanes<width> operator*(const Lanes<width>& a, const Lanes<width>& b) {
  Lanes<width> r;
  for (int p = 0; p < r.parts; ++p) r.v[p] = a.v[p] * b.v[p];
  return r;
}
template <int width>
LOCKSTEP_FUNCTION Lanes<width> operator/(const Lanes<width>& a, float b) {
  Lanes<width> r;
  for (int p = 0; p < r.parts; ++p) r.v[p] = a.v[p] / b;
  return r;
}
/// max(a, 0); a NaN stays one.
template <int width>
LOCKSTEP_FUNCTION Lanes<width> positive_part(const Lanes<width>& a) {
  Lanes<width> r = zeros<width>();
  for (int p = 0; p < r.parts; ++p) r.v[p] = r.v[p] > a.v[p] ? r.v[p] : a.v[p];
  return r;
}
/// g where y > 0 (or is NaN), else 0.
template <int width>
LOCKSTEP_FUNCTION Lanes<width> where_positive(const Lanes<width>& y, const Lanes<width>& g) {
  Lanes<width> r = zeros<width>();
  for (int p = 0; p < r.parts; ++p) r.v[p] = y.v[p] <= r.v[p] ? r.v[p] : g.v[p];
  return r;
}

/// One bit a lane, the first lane's lowest: whether it is > 0 (or NaN).  At most 8 lanes.
template <int width>
LOCKSTEP_FUNCTION std::uint8_t positive_bits(const Lanes<width>& y) {
  static_assert(width <= 8 && Lanes<width>::each == 1);
  unsigned bits = 0;
  for (int i = 0; i < width; ++i) bits |= (y.v[i] <= 0 ? 0u : 1u) << i;
  return static_cast<std::uint8_t>(bits);
}
/// g where the lane's bit is set, else 0.
template <int width>
LOCKSTEP_FUNCTION Lanes<width> where_set(std::uint8_t bits, const Lanes<width>& g) {
  static_assert(width <= 8 && Lanes<width>::each == 1);
  Lanes<width> r;
  for (int i = 0; i < width; ++i) r.v[i] = (bits >> i & 1) != 0 ? g.v[i] : 0.f;
  return r;
}

/// A packet's bytes, one a lane.
template <int width>
struct LaneBytes {
  std::uint8_t of[width];
};
template <int width>
LOCKSTEP_FUNCTION LaneBytes<width> load_bytes(const std::uint8_t* from) {
  LaneBytes<width> r;
  if constexpr (!runs_on_host && width % 4 == 0) {
    const Packet<width> raw = *reinterpret_cast<const Packet<width>*>(from);   // memcpy would read byte by byte
    memcpy(r.of, &raw, sizeof raw);
  } else {
    memcpy(r.of, from, sizeof r.of);
  }
  return r;
}

/// g where the byte is `value`, else 0.
template <int width>
LOCKSTEP_FUNCTION Lanes<width> where_equal(const LaneBytes<width>& bytes, std::uint8_t value, const Lanes<width>& g) {
  const std::uint8_t(&here)[width] = bytes.of;
  if constexpr (width == 1) {
    return here[0] == value ? g : zeros<width>();
  } else {
    std::uint32_t bits[width], mask[width];
    memcpy(bits, &g, sizeof bits);
    for (int i = 0; i < width; ++i) mask[i] = here[i] == value ? ~0u : 0u;
    for (int i = 0; i < width; ++i) bits[i] &= mask[i];
    Lanes<width> r;
    memcpy(&r, bits, sizeof bits);
    return r;
  }
}

/// Asks the cache for what a later row needs: a block's lines lie c apart, which the hardware's own prefetching follows badly.
/// Addresses may lie beyond the array.  Nothing on a GPU.
template <class T>
LOCKSTEP_FUNCTION void prefetch(const T* address) {
  if constexpr (runs_on_host) __builtin_prefetch(address, 0);
}
template <class T>
LOCKSTEP_FUNCTION void prefetch_for_writing(const T* address) {
  if constexpr (runs_on_host) __builtin_prefetch(address, 1);
}

/// a / b; 64-bit division is slow on a GPU, and most ranges are short.
LOCKSTEP_FUNCTION std::int64_t quotient(std::int64_t a, std::int64_t b) {
  return a <= UINT32_MAX && b <= UINT32_MAX ? static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b) : a / b;
}

/// Which end of the arrays a GPU starts with.  What the kernel before walked over last is still in its cache: the next one starts there.
enum class Walk { forwards, backwards };

/// One piece of for_each_block.
template <class Body>
LOCKSTEP_FUNCTION void run_piece(std::int64_t item, std::int64_t blocks, bool is_wide, const RowCut& cut, const Body& body) {
  constexpr int width = lane_width<typename Body::Element>;
  const std::int64_t chunk = quotient(item, blocks), first = (item - chunk * blocks) * width;
  const std::int64_t begin = chunk * cut.rows_each, end = begin + cut.rows_each < cut.rows ? begin + cut.rows_each : cut.rows;
  if (is_wide && first + width <= cut.c) {
    body.template run<width>(begin, end, chunk, first);
  } else {
    for (std::int64_t channel = first; channel < cut.c && channel < first + width; ++channel) body.template run<1>(begin, end, chunk, channel);
  }
}

#ifdef __CUDACC__
inline constexpr int piece_threads = 256;
template <class Body>
__global__ void __launch_bounds__(piece_threads, 2) run_pieces(std::int64_t items, std::int64_t blocks, bool is_wide, bool is_reversed, RowCut cut, Body body) {
  take_turn_in_stream();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * piece_threads + threadIdx.x;
  if (at < items) run_piece(is_reversed ? items - 1 - at : at, blocks, is_wide, cut, body);
}
#endif

/// Full blocks run lane_width wide, the channels of a last partial block one by one; on a GPU all of them where a row is no whole number of packets.
template <class Body>
void for_each_block(const char* label, const Device& device, const RowCut& cut, const Body& body, Walk walk = Walk::forwards) {
  constexpr int width = lane_width<typename Body::Element>;
  const std::int64_t blocks = cut.blocks(width);
  const bool is_wide = runs_on_host || cut.c % width == 0, is_reversed = !runs_on_host && walk == Walk::backwards;
  const std::int64_t items = cut.chunks() * blocks;
  if (items == 0) return;
#ifdef __CUDACC__
  (void)label;                           // Kokkos' ranges cannot be launched early, which is a tenth of a CIFAR ResNet-20's step
  launch_early(device, &run_pieces<Body>, dim3(static_cast<unsigned>((items + piece_threads - 1) / piece_threads)), dim3(piece_threads), items, blocks, is_wide, is_reversed,
               cut, body);
#else
  (void)is_reversed;
  Kokkos::parallel_for(label, range(device, items), KOKKOS_LAMBDA(std::int64_t item) { run_piece(item, blocks, is_wide, cut, body); });
#endif
}

}  // namespace lockstep
