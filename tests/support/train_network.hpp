// train_network: one rank's network with its optimizer, whose whole state a test sets and reads as flat host arrays.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "optim/optimizer.hpp"
#include "support/train_oracle.hpp"
#include "train/network.hpp"
#include "train/step_inputs.hpp"

namespace lockstep::test {

/// A run of one rank, without MPI.
class OneRank final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  Allocation allocate(Device& device, std::size_t bytes) override { return device.allocate(bytes); }
  void all_reduce_sum(Device&, Tensor, StreamId) override {}
  bool is_recordable() const override { return true; }
  void broadcast(void*, std::size_t, int) override {}
  double sum(double value) override { return value; }
  void sum(std::span<double>) override {}
  void sum(std::span<std::int64_t>) override {}
  std::int64_t max(std::int64_t value) override { return value; }
  std::int64_t min(std::int64_t value) override { return value; }
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  std::string broadcast(const std::string& text, int) override { return text; }
  void barrier() override {}
  void start_agree(int value) override { agreed_ = value; }
  int finish_agree() override { return agreed_; }
  std::unique_ptr<Communicator> split(int) override { return std::make_unique<OneRank>(); }
  void count_calls(std::atomic<std::int64_t>*) override {}

 private:
  int agreed_ = 0;
};

/// Everything that a step starts from and changes.  weights and moments are laid out as Parameters' flat buffer, buffers as its running statistics.
struct TrainingValues {
  std::vector<float> weights;
  std::vector<std::vector<float>> moments;
  std::vector<float> buffers;
};

class TestNetwork {
 public:
  explicit TestNetwork(const TorchCase& c, bool fuse = true)
      : config_(config_of(c, fuse)), network_(device_, comm_, config_, {c.batch, c.size, c.size, 3}), rate_(static_cast<float>(c.optimizer.learning_rate)),
        optimizer_((network_.allocate(), device_), config_.optimizer, network_.parameters(), {&rate_, 1}, c.precision == "fp16"), feed_(device_), batch_(c.batch) {
    const auto slices = parameters().slices();
    order_.resize(slices.size());
    for (std::size_t i = 0; i < slices.size(); ++i) order_[static_cast<std::size_t>(slices[i].spec.ordinal)] = i, parameter_count_ += slices[i].count;
    optimizer_.start(device_, executor().step_state());
  }

  Parameters& parameters() { return network_.parameters(); }
  Executor& executor() { return network_.executor(); }
  std::size_t moment_count() const { return optimizer_.moments().size(); }
  /// Slices in PyTorch's order.
  const Slice& slice(std::size_t ordinal) { return parameters().slices()[order_[ordinal]]; }
  std::size_t slice_count() const { return order_.size(); }
  /// Where a buffer's channels begin in TrainingValues::buffers.
  std::int64_t buffer_offset(std::size_t buffer) {
    return parameters().running(static_cast<int>(buffer)).as<float>() - parameters().memory().running.as<float>();
  }

  /// One value of each parameter, from PyTorch's order and layouts into this network's flat buffer; what lies between slices is 0.
  std::vector<float> stored(const std::vector<float>& file) {
    std::vector<float> flat(static_cast<std::size_t>(parameters().elements()));
    const float* from = file.data();
    for (std::size_t i = 0; i < slice_count(); from += slice(i++).count) from_file_layout(slice(i).spec, from, flat.data() + slice(i).offset);
    return flat;
  }
  std::int64_t parameter_count() const { return parameter_count_; }
  std::vector<float> read_parameters(TorchOracle& oracle) { return stored(oracle.read<float>(parameter_count())); }
  std::vector<float> read_buffers(TorchOracle& oracle) {
    std::vector<float> flat(static_cast<std::size_t>(parameters().buffer_elements()));
    for (std::size_t i = 0; i < parameters().buffers().size(); ++i)
      oracle.read(std::span<float>(flat.data() + buffer_offset(i), static_cast<std::size_t>(parameters().buffers()[i].channels)));
    return flat;
  }

  /// updates: how many were made before.
  void set(const TrainingValues& values, std::int64_t updates) {
    const ParameterMemory& memory = parameters().memory();
    put(memory.master.data, values.weights), put(memory.running.data, values.buffers), put(memory.candidate.data, values.buffers);
    parameters().refresh_compute(device_);
    for (std::size_t i = 0; i < values.moments.size(); ++i) put(optimizer_.moments()[i].values.data, values.moments[i]);
    OptimizerStatus status = optimizer_.status(device_);
    status.updates = updates;
    optimizer_.set_status(device_, status, executor().step_state());
  }
  TrainingValues values() {
    TrainingValues values;
    values.weights = get<float>(parameters().memory().master.data, parameters().elements());
    values.buffers = get<float>(parameters().memory().running.data, parameters().buffer_elements());
    for (const Optimizer::Moment& moment : optimizer_.moments()) values.moments.push_back(get<float>(moment.values.data, parameters().elements()));
    return values;
  }
  /// Without the loss scale.
  std::vector<float> gradients() {
    const float loss_scale = optimizer_.status(device_).loss_scale;
    std::vector<float> flat(static_cast<std::size_t>(parameters().elements()), 0.f);
    for (std::size_t i = 0; i < slice_count(); ++i) {
      const Slice& s = parameters().slices()[i];
      dispatch(s.grad_dtype, [&]<class T>(T) {
        const auto values = get<T>(parameters().grad(static_cast<int>(i)).data, s.count);
        for (std::size_t j = 0; j < values.size(); ++j) flat[static_cast<std::size_t>(s.offset) + j] = static_cast<float>(values[j]) / loss_scale;
      });
    }
    return flat;
  }

  /// images [batch, h, w, 3].
  void set_batch(const std::vector<float>& images, const std::vector<std::int32_t>& labels) {
    const Tensor input = executor().input();
    const std::int64_t channels = input.shape.c, pixels = input.size() / channels;
    std::vector<float> padded(static_cast<std::size_t>(input.size()));
    for (std::int64_t i = 0; i < pixels; ++i)
      for (std::int64_t c = 0; c < 3; ++c) padded[static_cast<std::size_t>(i * channels + c)] = images[static_cast<std::size_t>(i * 3 + c)];
    dispatch(input.dtype, [&]<class T>(T) { put(input.data, std::vector<T>(padded.begin(), padded.end())); });
    put(executor().labels().data, labels);
  }

  /// Forward, backward, update, as the trainer queues them.  The mean loss of the batch.
  double step(std::int64_t number) {
    publish(number);
    device_.zero(executor().metrics(), sizeof(MetricSums));
    executor().enqueue_training(batch_, true, true);
    optimizer_.enqueue_update(device_, executor().step_state(), parameters().nonfinite_losses());
    const MetricSums sums = get<MetricSums>(executor().metrics(), 1)[0];
    return sums.loss / static_cast<double>(sums.images);
  }
  /// [batch, classes] with the running statistics.
  std::vector<float> logits() {
    publish(0);
    executor().enqueue_evaluation(batch_);
    const Tensor logits = executor().logits(batch_);
    return get<float>(logits.data, logits.size());
  }

 private:
  static Config config_of(const TorchCase& c, bool fuse) {
    Config config;
    config.model = c.model, config.optimizer = c.optimizer, config.loss.label_smoothing = c.label_smoothing, config.graph.fuse = fuse;
    config.model.dropout = 0, config.precision = c.precision;
    config.run.outputs = "none", config.run.name = "none";   // a GPU's choices are neither read nor kept
    if (c.precision == "fp16") config.optimizer.loss_scale = c.loss_scale();
    return config;
  }
  void publish(std::int64_t number) {
    feed_.publish({.seed = 1, .step = number, .inverse_global_count = 1.0f / static_cast<float>(batch_), .local_count = static_cast<std::int32_t>(batch_)},
                  executor().step_state());
  }
  template <class T>
  void put(void* data, const std::vector<T>& values) { device_.copy_to_device(data, values.data(), values.size() * sizeof(T)), device_.wait(); }
  template <class T>
  std::vector<T> get(const void* data, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    device_.copy_to_host(values.data(), data, values.size() * sizeof(T));
    return values;
  }

  Device device_;
  OneRank comm_;
  Config config_;
  Network network_;
  float rate_;
  Optimizer optimizer_;
  StepInputsFeed feed_;
  std::int64_t batch_, parameter_count_ = 0;
  std::vector<std::size_t> order_;
};

}  // namespace lockstep::test
