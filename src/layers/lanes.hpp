// lanes: how a kernel walks over [rows, c].  A work item takes a few rows of neighbouring channels: sixteen on a CPU, where the compiler keeps
// them in vector registers, one on a GPU, where neighbouring threads then read neighbouring channels.
// In: a body with run<width>(first row, end row, chunk, first channel).  Out: one call for each piece, in parallel.
#pragma once
#include "tensor/views.hpp"

namespace lockstep {

inline constexpr int lane_width = runs_on_host ? 16 : 1;

/// [rows, c] in chunks of rows and blocks of channels.  A pure function of the shape: sums taken chunk by chunk do not depend on threads.
struct Cut {
  std::int64_t rows = 0, c = 1, rows_each = 1;
  LOCKSTEP_FUNCTION std::int64_t chunks() const { return (rows + rows_each - 1) / rows_each; }
  LOCKSTEP_FUNCTION std::int64_t blocks() const { return (c + lane_width - 1) / lane_width; }
};
inline Cut cut_rows(const Shape& x, std::int64_t rows_each) { return {x.n * x.h * x.w, x.c, rows_each}; }

/// Neighbouring channels of one row, as float.  One short loop an operation is what compilers turn into vector instructions.
template <int width>
struct Lanes {
  float v[width];
};
template <int width>
LOCKSTEP_FUNCTION Lanes<width> fill(float value) {
  Lanes<width> r;
  for (int i = 0; i < width; ++i) r.v[i] = value;
  return r;
}
template <int width, class T>
LOCKSTEP_FUNCTION Lanes<width> load(const T* from) {
  Lanes<width> r;
  for (int i = 0; i < width; ++i) r.v[i] = static_cast<float>(from[i]);
  return r;
}
template <int width, class T>
LOCKSTEP_FUNCTION void store(T* to, const Lanes<width>& a) {
  for (int i = 0; i < width; ++i) to[i] = T(a.v[i]);
}
template <int width>
LOCKSTEP_FUNCTION Lanes<width> operator+(const Lanes<width>& a, const Lanes<width>& b) {
  Lanes<width> r;
  for (int i = 0; i < width; ++i) r.v[i] = a.v[i] + b.v[i];
  return r;
}
template <int width>
LOCKSTEP_FUNCTION Lanes<width> operator-(const Lanes<width>& a, const Lanes<width>& b) {
  Lanes<width> r;
  for (int i = 0; i < width; ++i) r.v[i] = a.v[i] - b.v[i];
  return r;
}
template <int width>
LOCKSTEP_FUNCTION Lanes<width> operator*(const Lanes<width>& a, const Lanes<width>& b) {
  Lanes<width> r;
  for (int i = 0; i < width; ++i) r.v[i] = a.v[i] * b.v[i];
  return r;
}
/// max(a, 0); a NaN stays one.
template <int width>
LOCKSTEP_FUNCTION Lanes<width> positive_part(const Lanes<width>& a) {
  Lanes<width> r;
  for (int i = 0; i < width; ++i) r.v[i] = 0.f > a.v[i] ? 0.f : a.v[i];
  return r;
}
/// g where y > 0 (or is NaN), else 0.
template <int width>
LOCKSTEP_FUNCTION Lanes<width> where_positive(const Lanes<width>& y, const Lanes<width>& g) {
  Lanes<width> r;
  for (int i = 0; i < width; ++i) r.v[i] = y.v[i] <= 0.f ? 0.f : g.v[i];
  return r;
}

/// Full blocks run sixteen wide, the channels of a last partial block one by one.
template <class Body>
void for_each_block(const char* label, const Device& device, const Cut& cut, const Body& body) {
  const std::int64_t blocks = cut.blocks();
  Kokkos::parallel_for(label, range(device, cut.chunks() * blocks), KOKKOS_LAMBDA(std::int64_t item) {
    const std::int64_t chunk = item / blocks, first = (item - chunk * blocks) * lane_width;
    const std::int64_t begin = chunk * cut.rows_each, end = begin + cut.rows_each < cut.rows ? begin + cut.rows_each : cut.rows;
    if (first + lane_width <= cut.c) {
      body.template run<lane_width>(begin, end, chunk, first);
    } else {
      for (std::int64_t channel = first; channel < cut.c; ++channel) body.template run<1>(begin, end, chunk, channel);
    }
  });
}

}  // namespace lockstep
