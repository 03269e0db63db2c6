// tensor: a pointer, a shape and an element type.  Owns nothing; plain C++, no Kokkos.
// Arrays are NHWC everywhere: an image batch is [n, h, w, c], a matrix [n, 1, 1, c], a convolution's weight [k, r, s, c].
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace lockstep {

/// Four extents; unused ones are 1.  The first is the batch for activations.
struct Shape {
  std::int64_t n = 1, h = 1, w = 1, c = 1;
  std::int64_t size() const { return n * h * w * c; }
  std::int64_t image_size() const { return h * w * c; }
  Shape with_batch(std::int64_t batch) const { return {batch, h, w, c}; }
  bool operator==(const Shape&) const = default;
};
inline std::string text(const Shape& s) { return text_of("[", s.n, ", ", s.h, ", ", s.w, ", ", s.c, "]"); }
inline Shape vector_shape(std::int64_t c) { return {1, 1, 1, c}; }

struct Tensor {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;
  std::int64_t size() const { return shape.size(); }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype); }
  template <class T>
  T* as() const { return static_cast<T*>(data); }
  explicit operator bool() const { return data != nullptr; }
};

/// Calls f with a value of the element type: dispatch(t.dtype, [&]<class T>(T) { kernel<T>(...); }).
template <class F>
decltype(auto) dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f16: return f(f16{});
    case DType::bf16: return f(bf16{});
    default: fail_with(exit_internal, "dispatch: ", name_of(dtype), " is no compute type; only f32, f16 and bf16 are");
  }
}

/// How the first convolution wants its input: logical channels padded with zeros to `channels`.
struct InputForm {
  std::int64_t channels = 3;
  bool space_to_depth = false;
};

}  // namespace lockstep
