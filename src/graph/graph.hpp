// graph: a network as nodes in the order written.  Models append layers; shapes are checked as they are added.
// Layer is the contract: what a kind of layer must say about itself.  Layers never see trainer, optimizer or config.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/conv.hpp"
#include "comm/exchange.hpp"
#include "tensor/device.hpp"
#include "tensor/parameters.hpp"
#include "tensor/tensor.hpp"

namespace lockstep {

using Shapes = std::span<const Shape>;

/// What the host says of a step (or a micro-batch of it) before it is replayed.
struct StepInputs {
  std::int64_t seed = 0;
  std::int64_t step = 0;                 // batches consumed; dropout's counter
  std::int64_t part = 0;                 // micro-batch of this step
  std::int64_t first_sample = 0;         // position of this rank's first image of this part in the global batch: dropout does not depend on ranks
  float inverse_global_count = 0;        // 1 / images of this step over all ranks and parts
  float plateau_factor = 1;
  std::int32_t local_count = 0;          // images that count in this part (evaluation pads beyond it)
  std::int32_t is_rehearsal = 0;         // the update is left out, and nothing of the run moves: recordings are made of such steps
};
/// What changes between replays, in device memory, one for the run.  The inputs are the trainer's, the rest is the optimizer's.
struct StepState : StepInputs {
  std::int64_t updates = 0;              // updates made
  float loss_scale = 1;
};

/// Sums since the last read, in device memory; train/metrics reads and clears them.
struct MetricSums {
  double loss = 0;                       // sum over images
  std::int64_t images = 0, top1 = 0, top5 = 0;
};

/// What an evaluated image came out as, in device memory.
struct Prediction {
  std::int32_t label = 0;                // the class that stands first
  float probability = 0;                 // its softmax
  float loss = 0;                        // -log of the softmax of the image's own class, whatever label smoothing
};

/// again: out once more in training's backward pass, with equal bits, from the inputs and what was saved; nothing else moves.
enum class Mode { training, again, evaluation };

struct Forward {
  Device& device;
  Mode mode;
  std::span<const Tensor> in;
  Tensor out;
  std::span<const Tensor> weights;       // in the order of Layer::parameters()
  std::span<const Tensor> buffers;       // in the order of Layer::buffers(): training: candidates; evaluation: running
  Tensor saved;                          // u8; what Needs::saved_bytes asked for; empty in evaluation
  Tensor workspace;                      // u8; shared, contents undefined
  Tensor labels;                         // i32 [n]; for the loss
  const StepState* step;                 // device memory
  MetricSums* metrics;                   // device memory
  float* nonfinite_losses;               // device memory; the loss adds 1 for each image whose loss is not finite (training)
  Prediction* predictions;               // device memory [n], evaluation only, else null
  Exchange* exchange;                    // null: statistics of this rank alone
  std::span<const Tensor> in_sums{};     // f32 [parts, 2, c] one an input: of it over its pixels and of its square; empty: not there
  Tensor out_sums{};                     // the same of out; empty: not wanted
};

struct GradIn {
  Tensor tensor;
  GradMode mode = GradMode::skip;
};

struct Backward {
  Device& device;
  std::span<const Tensor> in;            // empty tensors where Needs did not ask for them
  Tensor out;
  Tensor grad_out;
  std::span<const GradIn> grad_in;       // one an input
  std::span<const Tensor> weights;
  std::span<const Tensor> grad_weights;  // f32, or of a 16-bit weight its dtype (then written); mode: weight_mode; empty tensor: frozen, skip
  GradMode weight_mode;                  // write on the first micro-batch, add on later ones
  std::span<const Tensor> buffers;
  Tensor saved, workspace, labels;
  const StepState* step;
  Exchange* exchange;
};

/// What a layer keeps and needs, for batches of in[0].n images.
struct Needs {
  bool keeps_input = false;              // in[...] are read in backward
  bool keeps_output = false;             // out is read in backward
  std::size_t saved_bytes = 0;           // beside them, from forward to backward
  std::size_t workspace_bytes = 0;       // scratch of the larger of forward and backward_input
  std::size_t weight_workspace_bytes = 0;   // of backward_weight
  bool output_over_input = false;        // out may lie over in[0] (if nobody else needs in[0])
  bool grad_over_input = false;          // a grad_in (mode write) may lie over its input (if nobody else needs that)
  bool grad_over_grad = false;           // the first grad_in (mode write) that lies over nothing else may lie over grad_out
};

/// A kind of layer.  One object a node; it may keep operators, not data.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::string kind() const = 0;                                  // "conv", "batch_norm", ...
  virtual Shape output(Shapes in) const = 0;                             // throws when the shapes do not fit
  virtual std::vector<ParameterSpec> parameters() const { return {}; }   // names without the node's: "weight"
  virtual std::vector<BufferSpec> buffers() const { return {}; }
  /// Makes operators for batches up to in[0].n.  Once, before needs().
  virtual void prepare(Device& device, const ConvSetting& setting, DType dtype, Shapes in) { (void)device, (void)setting, (void)dtype, (void)in; }
  /// Channels that in[0] had best be stored with, those beyond its own zero; asked of the layer that alone reads the network's input.
  virtual std::int64_t input_channels(const ConvSetting& setting, DType dtype, Shapes in) const { return (void)setting, (void)dtype, in[0].c; }
  virtual Needs needs(DType dtype, Shapes in) const = 0;
  /// Parts of Forward::out_sums that training's forward of so many images writes where asked; 0: none.  And whether it would take an input's sums
  /// rather than read it once more.
  virtual std::int64_t sum_parts(std::int64_t images) const { return (void)images, 0; }
  virtual bool takes_sums(std::size_t input) const { return (void)input, false; }
  virtual void forward(const Forward& f) = 0;
  /// Gradients of the inputs.  A layer with a joint pass (batch norm) writes grad_weights here too and leaves backward_weight empty.
  virtual void backward_input(const Backward& b) = 0;
  virtual void backward_weight(const Backward& b) { (void)b; }
  virtual bool can_repeat() const { return false; }                      // takes Mode::again
  virtual bool is_normalization() const { return false; }                // advances buffers; may be told to use the running ones
  virtual void use_running_statistics(std::size_t which) { (void)which; }  // frozen batch norm (freeze.batch_norm = "running"); which: parameters 2 which and on
};

class Graph;

/// One tensor of the network: the output of a node, or the input.
class Value {
 public:
  Value() = default;
  Value(Graph* graph, int id) : graph_(graph), id_(id) {}
  Graph& graph() const { return *graph_; }
  int id() const { return id_; }
  const Shape& shape() const;            // with the largest batch
  std::int64_t channels() const { return shape().c; }

 private:
  Graph* graph_ = nullptr;
  int id_ = -1;
};

struct Node {
  std::unique_ptr<Layer> layer;
  std::string name;                      // full: layer1.0.conv1; empty for layers without parameters
  std::vector<int> in;                   // value ids
  int out = -1;
  std::vector<int> parameters, buffers;  // into Graph::parameter_specs() and buffer_specs()
};

class Graph {
 public:
  /// images: [n, h, w, c] with n the largest batch a rank holds at once.
  explicit Graph(const Shape& images);
  Value input() { return Value(this, 0); }

  template <class L, class... Arguments>
  Value append(std::span<const Value> in, const std::string& name, Arguments&&... arguments) {
    return add(std::make_unique<L>(std::forward<Arguments>(arguments)...), in, name);
  }
  Value add(std::unique_ptr<Layer> layer, std::span<const Value> in, const std::string& name);

  std::span<const Node> nodes() const { return nodes_; }
  std::span<Node> nodes() { return nodes_; }
  const Shape& shape(int value) const { return shapes_[static_cast<std::size_t>(value)]; }
  int value_count() const { return static_cast<int>(shapes_.size()); }
  int output() const { return nodes_.back().out; }

  /// In the order written, which is torchvision's; ordinal set.  Full names.
  std::span<const ParameterSpec> parameter_specs() const { return parameters_; }
  std::span<const BufferSpec> buffer_specs() const { return buffers_; }

  /// Replaces nodes by a rewritten list (layers/fusion); values keep their ids, unused ones are ignored.
  std::vector<Node> take_nodes() { return std::move(nodes_); }
  void set_nodes(std::vector<Node> nodes) { nodes_ = std::move(nodes); }

 private:
  friend class Scope;
  std::vector<Node> nodes_;
  std::vector<Shape> shapes_;
  std::vector<ParameterSpec> parameters_;
  std::vector<BufferSpec> buffers_;
  std::string prefix_;                   // set by Scope
};

/// Names inside are below `name`: Scope scope(graph, "layer1.0").
class Scope {
 public:
  Scope(Graph& graph, const std::string& name);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Graph& graph_;
  std::string before_;
};

}  // namespace lockstep
