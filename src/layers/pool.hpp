// pool: max_pool's class, for fusion, which may make it a part of the batch norm before it.
#pragma once
#include "graph/graph.hpp"

namespace lockstep {

/// Square windows: window i covers pixels i * stride - pad and the kernel - 1 after it; those outside the image do not count.
struct PoolWindow {
  std::int64_t kernel = 1, stride = 1, pad = 0;
  bool operator==(const PoolWindow&) const = default;
  Shape output(const Shape& x) const {
    const auto extent = [&](std::int64_t size) { return size + 2 * pad < kernel ? 0 : (size + 2 * pad - kernel) / stride + 1; };
    return {x.n, extent(x.h), extent(x.w), x.c};
  }
};

/// max_pool: x [n, h, w, c] -> y [n, p, q, c].  Keeps the place of each window's largest, one byte an output.
class MaxPool final : public Layer {
 public:
  explicit MaxPool(const PoolWindow& window);
  const PoolWindow& window() const { return window_; }

  std::string kind() const override { return "max_pool"; }
  Shape output(Shapes in) const override { return window_.output(in[0]); }
  Needs needs(DType, Shapes in) const override { return {.saved_bytes = static_cast<std::size_t>(output(in).size())}; }
  void forward(const Forward& f) override;
  void backward_input(const Backward& b) override;

 private:
  PoolWindow window_;
};

}  // namespace lockstep
