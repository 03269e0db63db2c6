#include "train/checkpoint.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/aside.hpp"
#include "storage/hdf5.hpp"
#include "storage/sealed_file.hpp"

namespace lockstep {
namespace {

constexpr const char* format_name = "lockstep-checkpoint";
constexpr std::int64_t format_version = 1;
constexpr std::int64_t one[] = {1};

/// Calls visit(name, field) for each number of the progress; the one list of them, for writing and reading.
template <class Progress, class Visit>
void visit_progress(Progress& p, Visit&& visit) {
  visit("step", p.step), visit("epoch", p.epoch), visit("evaluated_step", p.evaluated_step), visit("best_step", p.best_step), visit("best_top1", p.best_top1);
  visit("updates", p.optimizer.updates), visit("skipped", p.optimizer.skipped), visit("skipped_in_row", p.optimizer.skipped_in_row);
  visit("good_in_row", p.optimizer.good_in_row), visit("loss_scale", p.optimizer.loss_scale);
  visit("plateau_best", p.plateau.best), visit("plateau_bad_epochs", p.plateau.bad_epochs), visit("plateau_factor", p.plateau.factor);
  visit("record_loss", p.since_record.loss), visit("record_images", p.since_record.images), visit("record_top1", p.since_record.top1), visit("record_top5", p.since_record.top5);
  visit("epoch_loss", p.since_epoch.loss), visit("epoch_images", p.since_epoch.images), visit("epoch_top1", p.since_epoch.top1), visit("epoch_top5", p.since_epoch.top5);
}

H5Type type_of(const std::int64_t&) { return H5Type::i64; }
H5Type type_of(const double&) { return H5Type::f64; }
H5Type type_of(const float&) { return H5Type::f32; }

void require_finite(const std::vector<float>& values, const std::string& what) {
  for (const float v : values)
    if (!std::isfinite(v)) fail_with(exit_diverged, what, " holds a value that is not finite: the run has diverged, and no checkpoint of it is written. "
                                     "Lower optimizer.learning_rate, or resume from an earlier checkpoint.");
}

/// A slice in the file's layout and shape.
void write_slice(H5File& file, const std::string& path, const Slice& slice, const std::vector<float>& flat_values) {
  std::vector<float> values(static_cast<std::size_t>(slice.count));
  to_file_layout(slice.spec, flat_values.data() + slice.offset, values.data());
  file.write(path, H5Type::f32, slice.spec.file_shape, values.data());
}

void read_slice(const H5File& file, const std::string& origin, const std::string& path, const Slice& slice, std::vector<float>& flat_values) {
  require(file.has(path), origin, " has no ", path, ": it is of another model than this input's. Check model.name and model.stem, or name another checkpoint.");
  const H5DatasetInfo info = file.info(path);
  require(info.shape == slice.spec.file_shape, origin, ": ", path, " is ", shape_text(info.shape), ", this model's is ", shape_text(slice.spec.file_shape),
          ". Check model.name, model.classes and model.stem.");
  std::vector<float> values(static_cast<std::size_t>(slice.count));
  file.read(path, H5Type::f32, values.data(), values.size());
  from_file_layout(slice.spec, values.data(), flat_values.data() + slice.offset);
}

H5File open_verified(const std::string& path) {
  verify_seal(path);
  H5File file = H5File::open(path);
  require(file.has_attribute("format") && file.text_attribute("format") == format_name, path, " is no checkpoint of lockstep. Name a file of checkpoints/ in a run's folder.");
  require(file.integer_attribute("version") == format_version, path, " is a checkpoint of version ", file.integer_attribute("version"),
          ", and this program reads version ", format_version, ". Use the program that wrote it.");
  return file;
}

CheckpointHeader header_in(const H5File& file) {
  CheckpointHeader h;
  h.model = file.text_attribute("model");
  h.classes = file.integer_attribute("classes");
  h.class_names = file.texts_attribute("class_names");
  h.global_batch = file.integer_attribute("global_batch");
  h.seed = file.integer_attribute("seed");
  h.ranks = file.integer_attribute("ranks");
  h.micro_batches = file.integer_attribute("micro_batches");
  h.steps_per_epoch = file.integer_attribute("steps_per_epoch");
  h.config = file.text_attribute("config");
  h.fit = file.text_attribute("fit");
  h.rotate = file.text_attribute("rotate");
  h.size = file.integer_attribute("size");
  h.versions = file.text_attribute("versions");
  return h;
}

RunProgress progress_in(const H5File& file) {
  RunProgress progress;
  visit_progress(progress, [&](const char* name, auto& value) { file.read(std::string("/progress/") + name, type_of(value), &value, 1); });
  return progress;
}

/// Removes the temporary file unless it was published.
struct Unfinished {
  std::string path;
  bool is_published = false;
  ~Unfinished() {
    if (!is_published) ::unlink(path.c_str());
  }
};

}  // namespace

void write_checkpoint(const std::string& path, const CheckpointHeader& header, const TrainingState& state, const Parameters& layout,
                      const std::function<void()>& tick) {
  require_finite(state.master, "a weight");
  require_finite(state.running, "a running statistic of batch norm");
  for (const MomentValues& m : state.moments) require_finite(m.values, m.name);

  Unfinished temporary{aside_of(path)};
  ::unlink(temporary.path.c_str());
  H5File file = H5File::create(temporary.path);
  file.set_attribute("format", std::string(format_name));
  file.set_attribute("version", format_version);
  file.set_attribute("model", header.model);
  file.set_attribute("classes", header.classes);
  file.set_attribute("class_names", std::span<const std::string>(header.class_names));
  file.set_attribute("global_batch", header.global_batch);
  file.set_attribute("seed", header.seed);
  file.set_attribute("ranks", header.ranks);
  file.set_attribute("micro_batches", header.micro_batches);
  file.set_attribute("steps_per_epoch", header.steps_per_epoch);
  file.set_attribute("config", header.config);
  file.set_attribute("fit", header.fit);
  file.set_attribute("rotate", header.rotate);
  file.set_attribute("size", header.size);
  file.set_attribute("versions", header.versions);

  for (const Slice& slice : layout.slices()) {
    write_slice(file, "/model/" + slice.spec.name, slice, state.master);
    for (const MomentValues& m : state.moments) write_slice(file, "/optimizer/" + m.name + "/" + slice.spec.name, slice, m.values);
    tick();
  }
  const std::string mean_suffix = "running_mean";
  for (std::size_t i = 0; i < layout.buffers().size(); ++i) {
    const BufferSpec& buffer = layout.buffers()[i];
    const std::int64_t shape[] = {buffer.channels};
    file.write("/model/" + buffer.name, H5Type::f32, shape, state.running.data() + layout.buffer_offset(i));
    if (buffer.name.ends_with(mean_suffix)) {
      const std::int64_t tracked = state.progress.optimizer.updates * header.micro_batches;
      file.write("/model/" + buffer.name.substr(0, buffer.name.size() - mean_suffix.size()) + "num_batches_tracked", H5Type::i64, {}, &tracked);
    }
  }
  if (!state.group_running.empty()) {
    const auto elements = static_cast<std::int64_t>(state.running.size());
    const std::int64_t shape[] = {static_cast<std::int64_t>(state.group_running.size()) / elements, elements};
    file.write("/progress/batch_norm", H5Type::f32, shape, state.group_running.data());
  }
  visit_progress(state.progress, [&](const char* name, const auto& value) { file.write(std::string("/progress/") + name, type_of(value), one, &value); });
  file.close();
  seal(temporary.path, {}, tick);
  publish(temporary.path, path);
  temporary.is_published = true;
}

bool is_checkpoint(const std::string& path) {
  verify_seal(path);
  const H5File file = H5File::open(path);
  return file.has_attribute("format") && file.text_attribute("format") == format_name;
}

CheckpointHeader read_checkpoint_header(const std::string& path) { return header_in(open_verified(path)); }
RunProgress read_checkpoint_progress(const std::string& path) { return progress_in(open_verified(path)); }

TrainingState read_checkpoint(const std::string& path, const Parameters& layout, const ModelConfig& model, bool with_optimizer,
                              const std::vector<std::string>& moment_names) {
  const H5File file = open_verified(path);
  const CheckpointHeader header = header_in(file);
  require(header.model == model.name, path, " holds a ", header.model, ", this input's model.name is ", model.name, ". Set model.name = \"", header.model, "\", or name another checkpoint.");
  require(header.classes == model.classes, path, " has ", header.classes, " outputs, this input asks for ", model.classes,
          ". Set model.classes = ", header.classes, ", or train from the start in another run.name.");
  TrainingState state;
  state.progress = progress_in(file);
  state.master.assign(static_cast<std::size_t>(layout.elements()), 0.f);
  for (const Slice& slice : layout.slices()) read_slice(file, path, "/model/" + slice.spec.name, slice, state.master);
  state.running.assign(static_cast<std::size_t>(layout.buffer_elements()), 0.f);
  for (std::size_t i = 0; i < layout.buffers().size(); ++i)
    file.read("/model/" + layout.buffers()[i].name, H5Type::f32, state.running.data() + layout.buffer_offset(i), static_cast<std::size_t>(layout.buffers()[i].channels));
  if (file.has("/progress/batch_norm")) {
    const std::vector<std::int64_t> shape = file.info("/progress/batch_norm").shape;
    require(shape.size() == 2 && shape[1] == layout.buffer_elements(), path, ": /progress/batch_norm does not fit this model. Check model.name.");
    state.group_running.assign(static_cast<std::size_t>(shape[0] * shape[1]), 0.f);
    file.read("/progress/batch_norm", H5Type::f32, state.group_running.data(), state.group_running.size());
  }
  if (!with_optimizer) return state;
  require(!header.is_imported(), path, " was made by lockstep import: a run cannot go on from it. Set model.weights = \"", path, "\" instead of run.resume.");
  for (const std::string& name : moment_names) {
    state.moments.push_back({name, std::vector<float>(static_cast<std::size_t>(layout.elements()), 0.f)});
    for (const Slice& slice : layout.slices())
      read_slice(file, path, "/optimizer/" + name + "/" + slice.spec.name, slice, state.moments.back().values);
  }
  return state;
}

WeightFile read_checkpoint_weights(const std::string& path) {
  const H5File file = open_verified(path);
  WeightFile weights{.path = path, .form = "a checkpoint of lockstep", .bytes = {}, .arrays = {}, .beside = {}, .notes = {}};
  const std::string group = "/model";
  const std::vector<H5DatasetInfo> datasets = file.list(group);
  std::size_t bytes = 0;
  for (const H5DatasetInfo& info : datasets) {
    const bool is_count = info.type == H5Type::i64;
    weights.arrays.push_back({.name = info.path.substr(group.size() + 1), .type = is_count ? ElementType::i64 : ElementType::f32, .shape = info.shape, .strides = contiguous(info.shape)});
    bytes += static_cast<std::size_t>(element_count(info.shape) * name_of(weights.arrays.back().type).bytes);
  }
  weights.bytes.resize(bytes);
  char* at = weights.bytes.data();
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    NamedArray& array = weights.arrays[i];
    const auto elements = static_cast<std::size_t>(element_count(array.shape));
    file.read(datasets[i].path, array.type == ElementType::i64 ? H5Type::i64 : H5Type::f32, at, elements);
    array.data = at;
    at += elements * static_cast<std::size_t>(name_of(array.type).bytes);
  }
  return weights;
}

void require_same_classes(const std::string& path, const std::vector<std::string>& of_file, const std::vector<std::string>& of_shards, const std::string& advice) {
  if (of_file.empty() || of_file == of_shards) return;   // empty: imported weights know no names
  std::size_t first = 0;
  while (first < std::min(of_file.size(), of_shards.size()) && of_file[first] == of_shards[first]) ++first;
  const auto name = [&](const std::vector<std::string>& names) { return first < names.size() ? "\"" + names[first] + "\"" : std::string("none"); };
  fail(path, " was trained on other classes: its class ", first, " is ", name(of_file), ", the shards' is ", name(of_shards), ". ", advice);
}

}  // namespace lockstep
