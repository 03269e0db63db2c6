// test_tensor: a tensor of any element type in device memory, whose margin tells of writes beyond its end.
#pragma once
#include <algorithm>
#include <vector>

#include "tensor/device.hpp"
#include "tensor/tensor.hpp"

namespace lockstep::test {

using Numbers = std::vector<double>;

/// Device memory of one tensor, with a margin behind it that must not be written.
class TestTensor {
 public:
  TestTensor(Device& device, const Shape& shape, DType dtype) : device_(device), tensor_{nullptr, shape, dtype} {
    memory_ = device.allocate(tensor_.bytes() + margin);
    tensor_.data = memory_.data();
    const std::vector<unsigned char> pattern(memory_.bytes(), 0xff);   // NaN in every dtype
    device.copy_to_device(memory_.data(), pattern.data(), pattern.size());
  }
  TestTensor(Device& device, const Shape& shape, DType dtype, const Numbers& numbers) : TestTensor(device, shape, dtype) {
    if (numbers.empty()) return;
    dispatch(dtype, [&]<class T>(T) {
      std::vector<T> stored;
      for (const double number : numbers) stored.push_back(T(static_cast<float>(number)));
      device.copy_to_device(tensor_.data, stored.data(), tensor_.bytes());
    });
  }
  operator Tensor() const { return tensor_; }
  Numbers numbers() const {
    return dispatch(tensor_.dtype, [&]<class T>(T) {
      std::vector<T> stored(static_cast<std::size_t>(tensor_.size()));
      if (!stored.empty()) device_.copy_to_host(stored.data(), tensor_.data, tensor_.bytes());
      return Numbers(stored.begin(), stored.end());
    });
  }
  bool is_margin_intact() const {
    std::vector<unsigned char> bytes(memory_.bytes());
    device_.copy_to_host(bytes.data(), memory_.data(), bytes.size());
    return std::all_of(bytes.end() - margin, bytes.end(), [](unsigned char byte) { return byte == 0xff; });
  }

 private:
  static constexpr std::size_t margin = 256;
  Device& device_;
  Tensor tensor_;
  Allocation memory_;
};

}  // namespace lockstep::test
