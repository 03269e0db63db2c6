// conv: the contract of a convolution and the only place that chooses who computes it.
// A linear layer is a 1x1 convolution on [n, 1, 1, c].  Weights are stored [k, r, s, c].
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "tensor/device.hpp"
#include "tensor/tensor.hpp"

namespace lockstep {

/// One convolution: x [n, h, w, c], weight [k, r, s, c], y [n, p, q, k].  Cross-correlation, zero padding, symmetric.
struct ConvProblem {
  std::int64_t n = 1, h = 1, w = 1, c = 1;
  std::int64_t k = 1, r = 1, s = 1;
  std::int64_t stride = 1, pad = 0;
  DType dtype = DType::f32;                      // of x, y, weight and their gradients; grad_weight may be f32
  bool has_bias = false;                         // y += bias [k] (f32)
  std::int64_t input_channels = 0;               // x is stored with so many, those from c on zero; 0: c.  Then grad_input is not offered
  bool allows_tf32 = false;                      // f32 factors may be rounded to 10 bits before they are multiplied
  bool operator==(const ConvProblem&) const = default;
  std::int64_t p() const { return (h + 2 * pad - r) / stride + 1; }
  std::int64_t q() const { return (w + 2 * pad - s) / stride + 1; }
  Shape input() const { return {n, h, w, input_channels > 0 ? input_channels : c}; }
  Shape output() const { return {n, p(), q(), k}; }
  Shape weight() const { return {k, r, s, c}; }
  std::int64_t terms() const { return r * s * c; }   // products in one output
};
std::string text(const ConvProblem& problem);

/// Whether a gradient is written or added to what is there.
enum class GradMode { skip, write, add };

/// What a call reads and writes; unused tensors stay empty.  Batches may be smaller than the problem's n: x.shape.n decides.
struct ConvArguments {
  Tensor x{}, weight{}, bias{}, y{};                        // forward reads x, weight, bias and writes y
  Tensor grad_y{}, grad_x{}, grad_weight{}, grad_bias{};    // grad_weight: f32, or the problem's dtype and written; grad_bias: f32; either may be empty
  GradMode mode = GradMode::write;                          // of grad_x, or of grad_weight and grad_bias
  Tensor sums{};                                            // f32 [parts, 2, k], forward: of y over n, p, q and of its square; empty: not wanted
  Tensor workspace{};                                       // u8, at least workspace_bytes(), grad_weight: weight_workspace_bytes()
};

class ConvOp {
 public:
  virtual ~ConvOp() = default;
  virtual const ConvProblem& problem() const = 0;
  /// Largest scratch of forward and grad_input, and grad_weight's, for batches up to problem().n.
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::size_t weight_workspace_bytes() const = 0;
  /// Parts of the sums that forward of so many images writes; 0: it does not, or another pass over y would be faster.
  virtual std::int64_t sum_parts(std::int64_t batch) { return (void)batch, 0; }
  virtual void forward(Device& device, const ConvArguments& a) = 0;
  virtual void grad_input(Device& device, const ConvArguments& a) = 0;    // grad_x from grad_y and weight; mode write or add
  virtual void grad_weight(Device& device, const ConvArguments& a) = 0;   // grad_weight, grad_bias from x and grad_y; mode write or add
};

/// Images of a call, by its x or grad_x, or by its y or grad_y where those are empty.  Throws (internal) where a tensor does not fit the
/// operator: another image shape or dtype, more images than it was made for, different batches, too little workspace.
std::int64_t checked_batch(const ConvOp& op, const ConvArguments& a);

class ConvChoices;

/// What decides who computes a convolution, and how, beside the problem.
struct ConvSetting {
  BackendConfig config;
  bool allows_tf32 = false;              // ConvProblem::allows_tf32 of all
  ConvChoices* choices = nullptr;        // of ways that are timed; null: nothing is timed
};

/// A library this build has.
struct ConvBackend {
  std::string name;                                            // "kokkos", "onednn", "cudnn"
  bool rounds_first = false;                                   // to the problem's dtype, what is then added to, or becomes f32 (PyTorch does so too)
  bool (*supports)(const ConvProblem&);
  std::int64_t (*input_channels)(const ConvProblem&) = [](const ConvProblem& problem) { return problem.c; };   // that x had best be stored with
  std::unique_ptr<ConvOp> (*make)(Device&, const ConvProblem&, const ConvSetting&);
};
/// One a library; each lies in the library's own file, and conv.cpp lists those that this build has.
ConvBackend kokkos_conv_backend();
ConvBackend onednn_conv_backend();
ConvBackend cudnn_conv_backend();
/// In order of preference.
std::span<const ConvBackend> conv_backends();
/// Channels that the library which make_conv would choose had best find in x: problem.c or more.
std::int64_t best_input_channels(const ConvSetting& setting, const ConvProblem& problem);
/// The one that config asks for, or the first that supports the problem.  Error lists what this build has.
std::unique_ptr<ConvOp> make_conv(Device& device, const ConvSetting& setting, const ConvProblem& problem);

}  // namespace lockstep
