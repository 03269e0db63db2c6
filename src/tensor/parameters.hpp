// parameters: every weight of a network in one flat buffer, and BN's running statistics beside it.
// In: the specs in the order backward finishes them, and memory.  Out: named slices that layers, optimizer, all-reduce and checkpoint share.
// A slice has a stored layout (what kernels read) and torchvision's (what files hold); both directions are here.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensor/device.hpp"
#include "tensor/tensor.hpp"

namespace lockstep {

/// How a parameter starts: pure in (seed, ordinal of the parameter, element in torchvision's order).
struct Init {
  enum Kind { constant, normal, uniform } kind = constant;
  double value = 0;  // the constant, the standard deviation, or the bound of [-bound, bound)
};

/// stored -> torchvision.  as_is; convolution: [k, r, s, c] -> [k, c, r, s]; linear after flatten: columns (h, w, c) -> (c, h, w).
struct ParameterLayout {
  enum Kind { as_is, convolution, flattened_linear } kind = as_is;
  Shape image;  // flattened_linear: the [1, h, w, c] that was flattened
};

struct ParameterSpec {
  std::string name;                       // torchvision's: layer1.0.conv1.weight
  Shape shape;                            // stored; linear [k, 1, 1, c], vectors [1, 1, 1, c]
  std::vector<std::int64_t> file_shape;   // torchvision's: OIHW, [out, in], [c]
  ParameterLayout layout;
  Init init;
  bool is_norm_or_bias = false;           // left out of weight decay if the optimizer says so
  int ordinal = 0;                        // position in torchvision's order; set by the graph
};

struct BufferSpec {                       // BN running statistics: f32 [1, 1, 1, c]
  std::string name;                       // layer1.0.bn1.running_mean
  std::int64_t channels = 0;
  float start = 0;
};

struct Slice {
  ParameterSpec spec;
  std::int64_t offset = 0;                // elements from the buffer's start; a multiple of 64
  std::int64_t count = 0;
  std::int64_t grad_offset = 0;           // bytes from the gradient buffer's start; a multiple of 128
  DType grad_dtype = DType::f32;
  bool is_frozen = false;
  double rate_factor = 1;                 // of the learning rate
};

/// Whether gradients of 16-bit weights stay as they are computed, in 16 bits: where nothing is added to them, neither micro-batches nor ranks.
enum class Gradients { f32, as_computed };

struct ParameterMemory {                  // handed in by the trainer; sizes by the functions below
  Tensor master, compute;                 // [1, 1, 1, elements]; compute == master when the compute type is f32
  Tensor grad;                            // [1, 1, 1, gradient_elements]
  Tensor running, candidate;              // [1, 1, 1, buffer elements] f32
};

class Parameters {
 public:
  /// Lays the slices out; binds no memory.
  Parameters(std::vector<ParameterSpec> in_finish_order, std::vector<BufferSpec> buffers, DType compute, Gradients gradients = Gradients::f32);
  std::int64_t elements() const { return elements_; }
  /// Of f32 size.  Behind the gradients, all f32 ones at their slices' offsets, lies the count of non-finite losses, so that one all-reduce sums both.
  std::int64_t gradient_elements() const { return gradients_end_ + 64; }
  std::int64_t buffer_elements() const { return buffer_elements_; }
  /// Where a buffer begins, elements from the start of the running statistics.
  std::int64_t buffer_offset(std::size_t buffer) const { return buffer_offsets_[buffer]; }
  void bind(ParameterMemory memory);

  DType compute_dtype() const { return compute_; }
  std::span<const Slice> slices() const { return slices_; }
  std::span<Slice> slices() { return slices_; }
  std::span<const BufferSpec> buffers() const { return buffers_; }
  const ParameterMemory& memory() const { return memory_; }

  Tensor master(int slice) const;                 // f32, stored shape
  Tensor weight(int slice) const;                 // what kernels read: compute type; norm parameters and biases stay f32
  Tensor grad(int slice) const;                   // of the slice's grad_dtype
  float* nonfinite_losses() const { return memory_.grad.as<float>() + gradients_end_; }
  Tensor running(int buffer) const;               // f32 [1, 1, 1, c]
  Tensor candidate(int buffer) const;

  struct Start { std::vector<float> master, running; };
  /// Every master weight as its Init draws it, and every buffer's start, on the host.
  Start start_values(std::uint64_t seed) const;
  /// Draws every master weight from its Init, sets buffers to their start (running and candidate), refreshes the compute copy.
  void initialize(Device& device, std::uint64_t seed);
  /// compute = cast(master).  A kernel on the current stream; nothing to do in f32.
  void refresh_compute(Device& device) const;

 private:
  std::vector<Slice> slices_;
  std::vector<BufferSpec> buffers_;
  std::vector<std::int64_t> buffer_offsets_;
  std::int64_t elements_ = 0, gradients_end_ = 0, buffer_elements_ = 0;
  DType compute_;
  ParameterMemory memory_;
};

/// The start values of one parameter, in torchvision's order.
std::vector<float> initial_values(const ParameterSpec& spec, std::uint64_t seed);
/// Host copies between the stored layout and torchvision's; both f32, spec.shape.size() elements.
void to_file_layout(const ParameterSpec& spec, const float* stored, float* file);
void from_file_layout(const ParameterSpec& spec, const float* file, float* stored);

}  // namespace lockstep
