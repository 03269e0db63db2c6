// direct_mma: the GPU's instructions that C++ has no words for, and what direct_*_cuda.cpp say with them.  For files that nvcc compiles.
// A shared-memory address is 32 bits.  A matrix is 8 x 8 of 16-bit elements: a lane holds row lane / 4, columns 2 (lane % 4) and the next.
#pragma once
#include <cstdint>
#include <type_traits>

#include "base/dtype.hpp"

namespace lockstep {

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

/// Begins to copy to shared memory; zeros where `is_inside` is not true.  is_common: other blocks of the multiprocessor read the same.
template <int bytes, bool is_common = false>
__device__ void copy_async(unsigned to, const void* from, bool is_inside) {
  const int read = is_inside ? bytes : 0;
  if constexpr (bytes == 16 && !is_common) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(read) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes), "r"(read) : "memory");
}
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most `open` of this thread's closed groups of copies are under way.
template <int open>
__device__ void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(open) : "memory"); }

__device__ inline void store_zeros(unsigned to) { asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory"); }
__device__ inline void store_shared(unsigned to, unsigned value) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory"); }
__device__ inline unsigned load_shared(unsigned from) {
  unsigned value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  return value;
}
__device__ inline uint4 load_shared_packet(unsigned from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
  return v;
}

/// Four matrices, whose 32 rows of 16 bytes the lanes name, eight each; transposed on the way if asked.
template <bool transposes>
__device__ void load_matrices(unsigned (&m)[4], unsigned row) {
  if constexpr (transposes)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(row) : "memory");
  else asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(row) : "memory");
}

/// sum [16, 8] += a [16, 16] b [16, 8].  a: rows 0-7 and 8-15 of columns 0-7, then of columns 8-15.  b: transposed; inner 0-7, 8-15.
/// sum: row lane / 4, columns 2 (lane % 4) and the next; then row 8 + lane / 4.
template <class T>
__device__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, f16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two neighbours in memory.
template <class T>
__device__ unsigned packed(float first, float second) {
  unsigned bits;
  if constexpr (std::is_same_v<T, f16>) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
  return bits;
}
template <class T>
__device__ float2 unpacked(unsigned bits) {
  T first, second;
  first.bits = static_cast<std::uint16_t>(bits), second.bits = static_cast<std::uint16_t>(bits >> 16);
  return {static_cast<float>(first), static_cast<float>(second)};
}

}  // namespace lockstep
