// tensorboard: scalars and the configuration as text, in the event file format (TFRecord frames of Event protocol buffers).
// The two messages are small enough to be written out by hand.  Source: tensorflow/core/util/event.proto, framework/summary.proto.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "storage/appended_file.hpp"
#include "storage/sealed_file.hpp"
#include "train/metrics.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Protocol buffer fields, appended one by one.
class Message {
 public:
  void varint(int field, std::uint64_t value) { tag(field, 0), raw_varint(value); }
  void number(int field, double value) { tag(field, 1), bytes(&value, sizeof value); }
  void number(int field, float value) { tag(field, 5), bytes(&value, sizeof value); }
  void text(int field, const std::string& value) { tag(field, 2), raw_varint(value.size()), data_ += value; }
  const std::string& data() const { return data_; }

 private:
  void tag(int field, int wire) { raw_varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire)); }
  void raw_varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) data_ += static_cast<char>(value | 128);
    data_ += static_cast<char>(value);
  }
  void bytes(const void* p, std::size_t n) { data_.append(static_cast<const char*>(p), n); }
  std::string data_;
};

/// TFRecord's checksum: CRC-32C, rotated and shifted.
std::string masked_crc(const std::string& data) {
  const std::uint32_t crc = crc32c(data.data(), data.size());
  const std::uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  return {reinterpret_cast<const char*>(&masked), sizeof masked};
}

constexpr std::string_view prefix = "events.out.tfevents.";

/// The step of an event as this file writes them; -1 for any other.
std::int64_t step_of_event(std::string_view data) {
  constexpr std::size_t begin = 10;                        // field 1, a double, then the tag of field 2
  if (data.size() <= begin || data[0] != 0x09 || data[9] != 0x10) return -1;
  std::uint64_t step = 0;
  for (std::size_t i = begin, shift = 0; i < data.size() && shift < 63; ++i, shift += 7) {
    step |= static_cast<std::uint64_t>(data[i] & 127) << shift;
    if ((data[i] & 128) == 0) return static_cast<std::int64_t>(step);
  }
  return -1;
}

/// Bytes of an event file up to its first frame that is half or damaged, or of a later step.
std::size_t kept_bytes(std::string_view file, std::int64_t step) {
  std::size_t at = 0;
  for (std::uint64_t length = 0; file.size() - at >= 16; at += 16 + length) {
    const std::string head(file.substr(at, 8));
    std::memcpy(&length, head.data(), sizeof length);
    if (length > file.size() - at - 16 || file.substr(at + 8, 4) != masked_crc(head)) break;
    const std::string data(file.substr(at + 12, length));
    if (file.substr(at + 12 + length, 4) != masked_crc(data) || step_of_event(data) > step) break;
  }
  return at;
}

/// What a run that was killed later has written, in files of our own: <prefix>SECONDS.STEP.  A file that cannot be cut stays: TensorBoard drops its later events.
/// Returns the latest of the SECONDS, 0 where there is none.
std::int64_t cut_off_later_events(const std::string& folder, std::int64_t step) {
  std::int64_t latest = 0;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(prefix) || name.find_first_not_of("0123456789.", prefix.size()) != std::string::npos) continue;
    latest = std::max<std::int64_t>(latest, std::strtoll(name.c_str() + prefix.size(), nullptr, 10));
    std::ifstream in(entry->path(), std::ios::binary);
    const std::string file{std::istreambuf_iterator<char>(in), {}};
    std::error_code stays;
    if (const std::size_t kept = kept_bytes(file, step); in && kept < file.size()) fs::resize_file(entry->path(), kept, stays);
  }
  return latest;
}

class TensorBoardSink final : public Sink {
 public:
  TensorBoardSink(const std::string& path, std::int64_t step, Warn warn) : file_(path, std::move(warn)) {
    Message version = event(0);
    version.text(3, "brain.Event:2");
    write(version);
    Message session, started = event(step + 1);            // TensorBoard drops what it has read of this step and later ones
    session.varint(1, 1);
    started.text(7, session.data());
    if (step > 0) write(started);
  }

  void start(const StartRecord& r) override {
    Message plugin, metadata, tensor, value, summary, e = event(r.step);
    plugin.text(1, "text");
    metadata.text(1, plugin.data());
    tensor.varint(1, 7);                                   // DT_STRING
    Message shape, dimension;
    dimension.varint(1, 1);
    shape.text(2, dimension.data());
    tensor.text(2, shape.data());
    tensor.text(8, "```\n" + r.config + "\n```");
    value.text(1, "config");
    value.text(8, tensor.data());
    value.text(9, metadata.data());
    summary.text(1, value.data());
    e.text(5, summary.data());
    write(e);
  }
  void train(const TrainRecord& r) override {
    scalars(r.step, {{"train/loss", r.loss}, {"train/top1", r.top1}, {"train/top5", r.top5}, {"train/learning_rate", r.learning_rate},
                     {"train/images_per_second", r.images_per_second}, {"train/step_seconds", r.step_seconds}, {"train/data_wait", r.data_wait},
                     {"train/loss_scale", r.loss_scale}, {"train/skipped", static_cast<double>(r.skipped)}, {"train/grad_norm", r.grad_norm},
                     {"train/memory_bytes", static_cast<double>(r.memory_bytes)}});
  }
  void eval(const EvalRecord& r) override { scalars(r.step, {{"eval/loss", r.loss}, {"eval/top1", r.top1}, {"eval/top5", r.top5}}); }
  void finish() override { file_.finish(); }
  void phases(const PhaseRecord& r) override {
    scalars(r.step, {{"seconds/start", r.start}, {"seconds/training", r.training}, {"seconds/data_wait", r.data_wait}, {"seconds/evaluation", r.evaluation},
                     {"seconds/checkpoint", r.checkpoint}});
  }

 private:
  Message event(std::int64_t step) const {
    Message e;
    e.number(1, wall_seconds());
    e.varint(2, static_cast<std::uint64_t>(step));
    return e;
  }
  void scalars(std::int64_t step, std::initializer_list<std::pair<const char*, double>> values) {
    Message summary, e = event(step);
    for (const auto& [name, number] : values) {
      Message value;
      value.text(1, name);
      value.number(2, static_cast<float>(number));
      summary.text(1, value.data());
    }
    e.text(5, summary.data());
    write(e);
  }
  void write(const Message& message) {
    const std::uint64_t length = message.data().size();
    const std::string head(reinterpret_cast<const char*>(&length), sizeof length);
    file_.append(head + masked_crc(head) + message.data() + masked_crc(message.data()));
  }

  AppendedFile file_;
};

}  // namespace

std::unique_ptr<Sink> make_tensorboard_sink(const std::string& folder, std::int64_t step, Warn warn) {
  const std::int64_t latest = cut_off_later_events(folder, step);
  const std::int64_t seconds = std::max(static_cast<std::int64_t>(wall_seconds()), latest + 1);   // TensorBoard reads the files in the order of their names
  return std::make_unique<TensorBoardSink>((fs::path(folder) / text_of(prefix, seconds, ".", step)).string(), step, std::move(warn));
}

}  // namespace lockstep
