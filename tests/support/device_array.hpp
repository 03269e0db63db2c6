// device_array: f32 values in device memory, for tests on CPUs and GPUs alike.
#pragma once
#include <vector>

#include "tensor/device.hpp"
#include "tensor/tensor.hpp"

namespace lockstep::test {

class DeviceArray {
 public:
  DeviceArray(Device& device, std::int64_t count)
      : device_(device), count_(count), memory_(device.allocate(static_cast<std::size_t>(count) * sizeof(float))) {
    device.wait();
  }
  DeviceArray(Device& device, const std::vector<float>& values) : DeviceArray(device, std::ssize(values)) { put(values); }

  void put(const std::vector<float>& values) {
    device_.copy_to_device(memory_.data(), values.data(), values.size() * sizeof(float));
    device_.wait();
  }
  std::vector<float> get() const {
    std::vector<float> values(static_cast<std::size_t>(count_));
    device_.copy_to_host(values.data(), memory_.data(), values.size() * sizeof(float));
    return values;
  }
  Tensor tensor() const { return part(0, count_); }
  Tensor part(std::int64_t begin, std::int64_t count) const { return {static_cast<float*>(memory_.data()) + begin, vector_shape(count), DType::f32}; }

 private:
  Device& device_;
  std::int64_t count_;
  Allocation memory_;
};

}  // namespace lockstep::test
