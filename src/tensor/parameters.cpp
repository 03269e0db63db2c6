#include "tensor/parameters.hpp"

#include <cstring>

#include "base/random.hpp"
#include "tensor/views.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t alignment = 64;  // elements: 256 bytes in f32, 128 in 16 bits
std::int64_t rounded_up(std::int64_t count) { return (count + alignment - 1) / alignment * alignment; }

Tensor slice_of(const Tensor& buffer, std::int64_t offset, const Shape& shape) {
  return {static_cast<char*>(buffer.data) + offset * static_cast<std::int64_t>(size_of(buffer.dtype)), shape, buffer.dtype};
}

/// Calls f(position in the file's order, position in the stored order) for each element.
template <class F>
void for_each_position(const ParameterSpec& spec, F&& f) {
  const Shape& s = spec.shape;
  if (spec.layout.kind == ParameterLayout::as_is) {
    for (std::int64_t i = 0; i < s.size(); ++i) f(i, i);
    return;
  }
  // A convolution is [k, r, s, c] and a flattened linear [k, (h, w, c)]: either way rows of h x w pixels of c channels.
  const Shape image = spec.layout.kind == ParameterLayout::convolution ? Shape{1, s.h, s.w, s.c} : spec.layout.image;
  const std::int64_t rows = s.size() / image.image_size(), pixels = image.h * image.w;
  for (std::int64_t k = 0; k < rows; ++k)
    for (std::int64_t c = 0; c < image.c; ++c)
      for (std::int64_t pixel = 0; pixel < pixels; ++pixel)
        f((k * image.c + c) * pixels + pixel, (k * pixels + pixel) * image.c + c);
}

template <class T>
void cast_parameters(Device& device, Tensor from, Tensor to) {
  const auto in = flat<float>(from);
  const auto out = flat<T>(to);
  Kokkos::parallel_for("parameters.cast", range(device, in.size()), KOKKOS_LAMBDA(std::int64_t i) { out(i) = T(in(i)); });
}

}  // namespace

Parameters::Parameters(std::vector<ParameterSpec> in_finish_order, std::vector<BufferSpec> buffers, DType compute, Gradients gradients)
    : buffers_(std::move(buffers)), compute_(compute) {
  std::int64_t grad_bytes = 0;
  for (ParameterSpec& spec : in_finish_order) {
    const std::int64_t count = spec.shape.size();
    const DType grad_dtype = gradients == Gradients::f32 || spec.is_norm_or_bias ? DType::f32 : compute;
    slices_.push_back({.spec = std::move(spec), .offset = elements_, .count = count, .grad_offset = grad_bytes, .grad_dtype = grad_dtype});
    elements_ += rounded_up(count);
    grad_bytes += rounded_up(count) * static_cast<std::int64_t>(size_of(grad_dtype));
  }
  gradients_end_ = rounded_up((grad_bytes + 3) / 4);
  for (const BufferSpec& buffer : buffers_) {
    buffer_offsets_.push_back(buffer_elements_);
    buffer_elements_ += rounded_up(buffer.channels);
  }
}

void Parameters::bind(ParameterMemory memory) { memory_ = memory; }

Tensor Parameters::master(int slice) const {
  const Slice& s = slices_[static_cast<std::size_t>(slice)];
  return slice_of(memory_.master, s.offset, s.spec.shape);
}
Tensor Parameters::weight(int slice) const {
  const Slice& s = slices_[static_cast<std::size_t>(slice)];
  return s.spec.is_norm_or_bias ? master(slice) : slice_of(memory_.compute, s.offset, s.spec.shape);
}
Tensor Parameters::grad(int slice) const {
  const Slice& s = slices_[static_cast<std::size_t>(slice)];
  return {memory_.grad.as<char>() + s.grad_offset, s.spec.shape, s.grad_dtype};
}
Tensor Parameters::running(int buffer) const {
  const auto i = static_cast<std::size_t>(buffer);
  return slice_of(memory_.running, buffer_offsets_[i], vector_shape(buffers_[i].channels));
}
Tensor Parameters::candidate(int buffer) const {
  const auto i = static_cast<std::size_t>(buffer);
  return slice_of(memory_.candidate, buffer_offsets_[i], vector_shape(buffers_[i].channels));
}

Parameters::Start Parameters::start_values(std::uint64_t seed) const {
  Start start{std::vector<float>(static_cast<std::size_t>(elements_), 0.f), std::vector<float>(static_cast<std::size_t>(buffer_elements_), 0.f)};
  for (const Slice& slice : slices_) from_file_layout(slice.spec, initial_values(slice.spec, seed).data(), start.master.data() + slice.offset);
  for (std::size_t i = 0; i < buffers_.size(); ++i) std::fill_n(start.running.begin() + buffer_offsets_[i], buffers_[i].channels, buffers_[i].start);
  return start;
}

void Parameters::initialize(Device& device, std::uint64_t seed) {
  const Start start = start_values(seed);
  device.copy_to_device(memory_.master.data, start.master.data(), start.master.size() * sizeof(float));
  device.copy_to_device(memory_.running.data, start.running.data(), start.running.size() * sizeof(float));
  device.copy_to_device(memory_.candidate.data, start.running.data(), start.running.size() * sizeof(float));
  device.wait();  // the host copies end here
  refresh_compute(device);
}

void Parameters::refresh_compute(Device& device) const {
  if (memory_.compute.data == memory_.master.data) return;
  dispatch(compute_, [&]<class T>(T) { cast_parameters<T>(device, memory_.master, memory_.compute); });
}

std::vector<float> initial_values(const ParameterSpec& spec, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(spec.shape.size()));
  const auto ordinal = static_cast<std::uint64_t>(spec.ordinal);
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (spec.init.kind) {
      case Init::constant: values[i] = static_cast<float>(spec.init.value); break;
      case Init::normal: values[i] = static_cast<float>(spec.init.value * normal(seed, Purpose::weights, ordinal, i)); break;
      case Init::uniform:
        values[i] = static_cast<float>(spec.init.value * (2.0 * uniform4(seed, Purpose::weights, ordinal, i)[0] - 1.0));
        break;
    }
  }
  return values;
}

void to_file_layout(const ParameterSpec& spec, const float* stored, float* file) {
  for_each_position(spec, [&](std::int64_t in_file, std::int64_t in_store) { file[in_file] = stored[in_store]; });
}
void from_file_layout(const ParameterSpec& spec, const float* file, float* stored) {
  for_each_position(spec, [&](std::int64_t in_file, std::int64_t in_store) { stored[in_store] = file[in_file]; });
}

}  // namespace lockstep
