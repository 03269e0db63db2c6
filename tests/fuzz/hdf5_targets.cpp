// hdf5_targets: shards and checkpoints, damaged, and forged with checksums that hold.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "base/error.hpp"
#include "fuzz/hdf5_seals.hpp"
#include "fuzz/target.hpp"
#include "storage/hdf5.hpp"
#include "storage/sealed_file.hpp"
#include "storage/shards.hpp"
#include "support/scratch.hpp"
#include "train/checkpoint.hpp"

namespace lockstep::fuzz {
namespace {

// libhdf5 keeps caches of a fixed size, and reads strings through a buffer of 1 MB.
constexpr std::int64_t library_bytes = 4 << 20;

const std::vector<std::string> words = {"OHDR", "OCHK", "FRHP", "FHDB", "FHIB", "BTHD", "BTLF", "BTIN", "GCOL", "SNOD", "TREE", "HEAP", "LOCKSEAL", std::string(8, '\xff'), std::string(8, '\0'), "/images", "/etc/passwd"};

/// A shard as ShardWriter makes them, but without the megabyte that it leaves before the pixels.
std::string shard(bool own_sizes) {
  const std::string path = scratch("seed.h5");
  std::remove(path.c_str());
  const std::int64_t n = 3, side = 2, bytes = n * side * side * 3;
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(7 * i);
  std::vector<std::uint32_t> crcs;
  std::vector<std::int64_t> offsets;
  for (std::int64_t i = 0; i < n; ++i) offsets.push_back(i * bytes / n), crcs.push_back(crc32c(pixels.data() + offsets.back(), static_cast<std::size_t>(bytes / n)));
  const std::vector<std::int32_t> labels = {0, 1, 0}, sides(3, 2);
  const std::vector<double> mean = {0.5, 0.4, 0.3};
  const std::vector<std::string> classes = {"cat", "dog"}, names = {"a.jpg", "b.jpg", "c.jpg"};
  H5File file = H5File::create(path);
  file.set_attribute("format", std::string(shard_format)), file.set_attribute("version", shard_version);
  for (const auto& [name, text] : {std::pair("split", "train"), {"fit", "cover"}, {"rotate", "exif"}, {"source", "test"}}) file.set_attribute(name, std::string(text));
  for (const auto& [name, value] : {std::pair("height", own_sizes ? 0 : side), {"width", own_sizes ? 0 : side}, {"size", side}, {"split_images", n}, {"shard", std::int64_t{0}}, {"shards", std::int64_t{1}}, {"images", n}})
    file.set_attribute(name, value);
  file.set_attribute("classes", std::span<const std::string>(classes)), file.set_attribute("mean", std::span<const double>(mean)), file.set_attribute("std", std::span<const double>(mean));
  const std::int64_t shape[] = {n, side, side, 3}, flat[] = {bytes}, each[] = {n};
  if (own_sizes) file.write("/pixels", H5Type::u8, flat, pixels.data()), file.write("/offsets", H5Type::i64, each, offsets.data()), file.write("/heights", H5Type::i32, each, sides.data()), file.write("/widths", H5Type::i32, each, sides.data());
  else file.write("/images", H5Type::u8, shape, pixels.data());
  file.write("/labels", H5Type::i32, each, labels.data()), file.write("/crc32c", H5Type::u32, each, crcs.data());
  file.write_texts("/names", names);
  const std::int64_t begin = file.info(own_sizes ? "/pixels" : "/images").file_offset;
  file.close();
  seal(path, {begin, begin + bytes});
  return read_file(path);
}

/// A convolution, its batch norm and a linear layer.
Parameters layout() {
  std::vector<ParameterSpec> specs(3);
  specs[0] = {.name = "fc.weight", .shape = {2, 1, 1, 3}, .file_shape = {2, 3}, .layout = {}, .init = {}, .ordinal = 2};
  specs[1] = {.name = "bn1.weight", .shape = {1, 1, 1, 3}, .file_shape = {3}, .layout = {}, .init = {}, .is_norm_or_bias = true, .ordinal = 1};
  specs[2] = {.name = "conv1.weight", .shape = {3, 1, 2, 2}, .file_shape = {3, 2, 1, 2}, .layout = {.kind = ParameterLayout::convolution, .image = {}}, .init = {}, .ordinal = 0};
  return Parameters(specs, {{"bn1.running_mean", 3, 0}, {"bn1.running_var", 3, 1}}, DType::f32);
}

std::string checkpoint(bool with_optimizer) {
  const Parameters parameters = layout();
  CheckpointHeader header{.model = "resnet20", .classes = 2, .class_names = {"cat", "dog"}, .global_batch = with_optimizer ? 8 : 0, .seed = 1, .ranks = 1, .config = "[run]\nepochs = 3\n", .fit = "none", .rotate = "none", .size = 32, .versions = "test"};
  TrainingState state;
  state.master.assign(static_cast<std::size_t>(parameters.elements()), 0.5f), state.running.assign(static_cast<std::size_t>(parameters.buffer_elements()), 1.f);
  if (with_optimizer) state.group_running = state.running, state.moments = {{"momentum_buffer", state.master}};
  const std::string path = scratch("seed.h5");
  write_checkpoint(path, header, state, parameters, [] {});
  return read_file(path);
}

}  // namespace

Target shard_target() {
  return {.name = "shard",
          .seeds = {shard(false), shard(true)},
          .words = words,
          .read = [](const std::string& bytes) {
            const std::string name = "train-00000-of-00001.h5", path = scratch(name);
            put(path, bytes);
            const Dataset data(scratch(""), "train");
            std::vector<std::uint8_t> pixels(static_cast<std::size_t>(data.max_image_bytes()));
            for (std::int64_t id = 0; id < data.size(); ++id) data.read(id, pixels.data());
            data.names_of(0);
            inspect_shard(path);
          },
          .repair = resealed,
          .names = {"train-00000-of-00001.h5", scratch("")},
          .bytes_constant = library_bytes,
          .most_bytes = 1 << 15,
          .library = "libhdf5"};
}

Target checkpoint_target() {
  return {.name = "checkpoint",
          .seeds = {checkpoint(true), checkpoint(false)},
          .words = words,
          .read = [](const std::string& bytes) {
            const std::string path = scratch("step-00000001.h5");
            put(path, bytes);
            if (!is_checkpoint(path)) fail(path, ": is no checkpoint.");
            const CheckpointHeader header = read_checkpoint_header(path);
            read_checkpoint_progress(path);
            ModelConfig model;
            model.name = "resnet20", model.classes = 2;
            read_checkpoint(path, layout(), model, !header.is_imported(), {"momentum_buffer"});
            CheckpointHeader same;
            const WeightFile weights = read_checkpoint_weights(path, same);
            for (const NamedArray& array : weights.arrays)
              if (array.type == ElementType::f32) floats_of(array);
          },
          .repair = resealed,
          .names = {"step-00000001.h5"},
          .bytes_constant = library_bytes,
          .most_bytes = 1 << 16,
          .library = "libhdf5"};
}

}  // namespace lockstep::fuzz
