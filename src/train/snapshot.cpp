#include "train/snapshot.hpp"

#include <cstring>

namespace lockstep {
namespace {

std::vector<float> host_copy(Device& device, const Tensor& t) {
  std::vector<float> values(static_cast<std::size_t>(t.size()));
  device.copy_to_host(values.data(), t.data, t.bytes());
  return values;
}
void device_copy(Device& device, const std::vector<float>& values, const Tensor& t) {
  device.copy_to_device(t.data, values.data(), t.bytes());
  device.wait();                         // the host copy may end now
}
void broadcast(Communicator& comm, std::vector<float>& values, std::size_t count) {
  values.resize(count);
  comm.broadcast(values.data(), count * sizeof(float), 0);
}

}  // namespace

int ranks_per_statistics(const ModelConfig& model, int world) {
  if (!model.sync_bn) return 1;
  return model.sync_bn_group == 0 ? world : static_cast<int>(model.sync_bn_group);
}

TrainingState take_snapshot(Device& device, Communicator& comm, const Network& network, const Optimizer& optimizer, const RunProgress& progress, int group) {
  TrainingState state;
  state.progress = progress;
  const ParameterMemory& memory = network.parameters().memory();
  const std::vector<float> running = host_copy(device, memory.running);
  const bool is_leader = comm.rank() % group == 0;
  const std::vector<std::string> parts =
      comm.gather(is_leader ? std::string(reinterpret_cast<const char*>(running.data()), running.size() * sizeof(float)) : std::string());
  if (comm.rank() != 0) return state;
  state.running = running;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    const std::size_t before = state.group_running.size();
    state.group_running.resize(before + running.size());
    std::memcpy(state.group_running.data() + before, part.data(), part.size());
  }
  state.master = host_copy(device, memory.master);
  for (const Optimizer::Moment& moment : optimizer.moments()) state.moments.push_back({moment.name, host_copy(device, moment.values)});
  return state;
}

TrainingState weights_of(Device& device, const Network& network) {
  const ParameterMemory& memory = network.parameters().memory();
  TrainingState state;
  state.master = host_copy(device, memory.master);
  state.running = host_copy(device, memory.running);
  return state;
}

void restore_weights(Device& device, Communicator& comm, Network& network, TrainingState& state) {
  static_assert(std::is_trivially_copyable_v<RunProgress>);
  const Parameters& parameters = network.parameters();
  comm.broadcast(&state.progress, sizeof state.progress, 0);
  broadcast(comm, state.master, static_cast<std::size_t>(parameters.elements()));
  device_copy(device, state.master, parameters.memory().master);
  parameters.refresh_compute(device);
  broadcast(comm, state.running, static_cast<std::size_t>(parameters.buffer_elements()));
  device_copy(device, state.running, parameters.memory().running);
  device_copy(device, state.running, parameters.memory().candidate);
}

void restore_snapshot(Device& device, Communicator& comm, Network& network, Optimizer& optimizer, TrainingState& state, int group) {
  restore_weights(device, comm, network, state);
  const std::vector<Optimizer::Moment> moments = optimizer.moments();
  state.moments.resize(moments.size());
  for (std::size_t i = 0; i < moments.size(); ++i) {
    broadcast(comm, state.moments[i].values, static_cast<std::size_t>(moments[i].values.size()));
    device_copy(device, state.moments[i].values, moments[i].values);
  }
  optimizer.set_status(device, state.progress.optimizer, network.executor().step_state());

  const auto buffer_elements = static_cast<std::size_t>(network.parameters().buffer_elements());
  std::int64_t saved_groups = buffer_elements == 0 ? 0 : static_cast<std::int64_t>(state.group_running.size() / buffer_elements);
  comm.broadcast(&saved_groups, sizeof saved_groups, 0);
  if (saved_groups != comm.size() / group) return;   // other groups than before: all start from the run's
  broadcast(comm, state.group_running, static_cast<std::size_t>(saved_groups) * buffer_elements);
  const auto first = state.group_running.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(comm.rank() / group) * buffer_elements);
  const std::vector<float> own(first, first + static_cast<std::ptrdiff_t>(buffer_elements));
  device_copy(device, own, network.parameters().memory().running);
  device_copy(device, own, network.parameters().memory().candidate);
}

RankZeroStatistics::RankZeroStatistics(Device& device, Communicator& comm, Network& network)
    : device_(device), network_(network), own_(host_copy(device, network.parameters().memory().running)) {
  std::vector<float> shared = own_;
  broadcast(comm, shared, shared.size());
  device_copy(device, shared, network.parameters().memory().running);
}
RankZeroStatistics::~RankZeroStatistics() {
  device_.copy_to_device(network_.parameters().memory().running.data, own_.data(), own_.size() * sizeof(float));
  device_.wait();
}

}  // namespace lockstep
