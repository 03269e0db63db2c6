// weights: a network started from torchvision's weights computes what PyTorch computes; what does not fit is said, and what cannot be meant is refused.
#include "train/weights.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "storage/safetensors.hpp"
#include "storage/torch_file.hpp"
#include "support/models_torch.hpp"
#include "support/train_network.hpp"

namespace lockstep::test {
namespace {

/// A state dict in memory: every tensor of a model, counted up from 1 so that no two elements agree by chance.
class StateDict {
 public:
  explicit StateDict(const std::string& model, std::int64_t classes = 10, const std::string& stem = "imagenet") {
    ModelConfig config;
    config.name = model, config.classes = classes, config.stem = stem;
    const Graph graph = model_graph(config);
    for (const ParameterSpec& spec : graph.parameter_specs()) add(spec.name, spec.file_shape);
    for (const BufferSpec& spec : graph.buffer_specs()) add(spec.name, {spec.channels});
  }
  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::vector<float>& values = values_[name];
    for (std::int64_t i = 0; i < element_count(shape); ++i) values.push_back(static_cast<float>(++counted_));
    shapes_[name] = shape;
  }
  void remove(const std::string& start) {
    std::erase_if(values_, [&](const auto& entry) { return entry.first.starts_with(start); });
  }
  std::vector<float>& operator[](const std::string& name) { return values_.at(name); }
  /// prefix: before every name.
  Weights weights(const std::string& prefix = "") {
    const ScratchFolder folder;
    std::vector<NamedArray> arrays;
    for (const auto& [name, values] : values_)
      arrays.push_back({.name = prefix + name, .shape = shapes_.at(name), .strides = contiguous(shapes_.at(name)), .data = reinterpret_cast<const char*>(values.data())});
    write_safetensors(folder / "file.safetensors", arrays, notes);
    return read_weights(folder / "file.safetensors");
  }
  std::map<std::string, std::string> notes;

 private:
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
  std::int64_t counted_ = 0;
};

struct Taken {
  TakenWeights result;
  std::string table;
  std::map<std::string, std::vector<float>> values;   // by name, in the file's layout
};

Taken take(const Weights& weights, const ModelConfig& model, const std::vector<std::string>& class_names = {}) {
  const Graph graph = model_graph(model);
  const Parameters layout(finish_order(graph), std::vector<BufferSpec>(graph.buffer_specs().begin(), graph.buffer_specs().end()), DType::f32);
  TrainingState state;
  state.master.assign(static_cast<std::size_t>(layout.elements()), 0.f), state.running.assign(static_cast<std::size_t>(layout.buffer_elements()), 0.f);
  Taken taken{.result = take_weights(weights, model, class_names, layout, state), .table = "", .values = {}};
  for (const std::string& line : taken.result.table) taken.table += line + "\n";
  for (const Slice& slice : layout.slices()) {
    std::vector<float>& values = taken.values[slice.spec.name];
    values.resize(static_cast<std::size_t>(slice.count));
    to_file_layout(slice.spec, state.master.data() + slice.offset, values.data());
  }
  for (std::size_t i = 0; i < layout.buffers().size(); ++i) {
    const float* begin = state.running.data() + layout.buffer_offset(i);
    taken.values[layout.buffers()[i].name].assign(begin, begin + layout.buffers()[i].channels);
  }
  return taken;
}
ModelConfig model_of(const std::string& name, std::int64_t classes = 10) {
  ModelConfig model;
  model.name = name, model.classes = classes;
  return model;
}
void expect_refused(const Weights& weights, const ModelConfig& model, const std::vector<std::string>& parts, const std::vector<std::string>& class_names = {}) {
  try {
    take(weights, model, class_names);
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), exit_bad_input);
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}
bool is_zero(const std::vector<float>& values) { return std::ranges::all_of(values, [](float v) { return v == 0; }); }

TEST(Weights, EveryTensorOfEveryNetworkIsTakenWithOrWithoutModule) {
  for (const char* name : {"resnet20", "resnet18", "resnet50", "alexnet", "lenet"}) {
    SCOPED_TRACE(name);
    StateDict dict(name);
    for (const char* prefix : {"", "module."}) {
      const Weights weights = dict.weights(prefix);
      EXPECT_EQ(recognized(weights.file)->name, name);
      EXPECT_EQ(recognized(weights.file)->classes, 10);
      const Taken taken = take(weights, model_of(name));
      for (const auto& [tensor, values] : taken.values) EXPECT_EQ(values, dict[tensor]) << tensor;
      EXPECT_NE(taken.table.find("all of them"), std::string::npos) << taken.table;
    }
  }
}

TEST(Weights, AHeadOfAnotherClassCountStaysAndTheTableSaysSo) {
  StateDict dict("resnet18", 1000);
  dict.remove("layer4.1.bn2.running_var");
  dict.add("extra.weight", {3});
  const Taken taken = take(dict.weights(), model_of("resnet18", 5));
  for (const auto& [tensor, values] : taken.values) {
    const bool is_left = tensor.starts_with("fc.") || tensor == "layer4.1.bn2.running_var";
    EXPECT_EQ(values, is_left ? std::vector<float>(values.size()) : dict[tensor]) << tensor;
  }
  for (const char* part : {"loaded   99 of 102", "skipped  fc.weight: [1000, 512] in the file, [5, 512] here", "skipped  fc.bias: [1000] in the file, [5] here",
                           "missing  in the file, start anew: layer4.1.bn2.running_var", "not in resnet18: extra.weight"})
    EXPECT_NE(taken.table.find(part), std::string::npos) << part << " is not in:\n" << taken.table;
}

TEST(Weights, AnotherStemsFirstConvolutionAloneIsSkipped) {
  StateDict dict("resnet18");
  ModelConfig model = model_of("resnet18");
  model.stem = "cifar";
  const Taken taken = take(dict.weights(), model);
  EXPECT_NE(taken.table.find("loaded   101 of 102"), std::string::npos) << taken.table;
  EXPECT_NE(taken.table.find("skipped  conv1.weight: [64, 3, 7, 7] in the file, [64, 3, 3, 3] here"), std::string::npos) << taken.table;
  EXPECT_EQ(recognized(StateDict("resnet18", 10, "cifar").weights().file)->stem, "cifar");
}

TEST(Weights, WhatWeightsExceptNamesStartsAnew) {
  StateDict dict("resnet18");
  ModelConfig model = model_of("resnet18");
  model.weights_except = {"fc.*", "layer4.*"};
  for (const auto& [tensor, values] : take(dict.weights(), model).values) EXPECT_EQ(is_zero(values), tensor.starts_with("fc.") || tensor.starts_with("layer4.")) << tensor;
  model.weights_except = {"head.*"};
  expect_refused(dict.weights(), model, {"model.weights_except", "head.*", "fc.bias"});
  model.weights_except = {"*"};
  expect_refused(dict.weights(), model, {"model.weights_except", "every tensor of resnet18", "file.safetensors"});
}

TEST(Weights, AFileOfAnotherNetworkIsNamedAsSuch) {
  for (const auto& [of_file, of_input] : {std::pair{"resnet34", "resnet18"}, {"resnet18", "resnet34"}, {"resnet50", "resnet101"}, {"resnet101", "resnet50"}, {"resnet20", "resnet110"},
                                          {"resnet50", "resnet34"}, {"alexnet", "resnet18"}})
    expect_refused(StateDict(of_file).weights(), model_of(of_input), {"file.safetensors", text_of("weights of ", of_file), text_of("model.name is ", of_input), text_of("model.name = \"", of_file, "\"")});
  StateDict foreign("lenet");
  foreign.remove("");
  foreign.add("patch_embed.proj.weight", {2, 3, 4, 4});
  EXPECT_FALSE(recognized(foreign.weights().file));
  expect_refused(foreign.weights(), model_of("resnet18"), {"file.safetensors", "patch_embed.proj.weight", "conv1.weight", "another architecture", "model.name"});
}

TEST(Weights, APartOfTheAskedNetworkIsNotTakenForASmallerOne) {
  StateDict dict("resnet34");            // without one block it still holds all of a ResNet-18
  dict.remove("layer3.5.");
  EXPECT_EQ(recognized(dict.weights().file)->name, "resnet18");
  EXPECT_NE(take(dict.weights(), model_of("resnet34")).table.find("missing  in the file, start anew: layer3.5.conv1.weight"), std::string::npos);
}

TEST(Weights, V1WhereAFileSaysItIsRefusedAndV15IsNot) {
  StateDict dict("resnet50");
  for (const char* says : {"resnet50_v1", "ResNet-50 v1", "resnet50v1"}) {
    dict.notes = {{"arch", says}};
    expect_refused(dict.weights(), model_of("resnet50"), {"file.safetensors", says, "v1.5", "1x1", "3x3"});
  }
  for (const char* says : {"resnet50", "resnet50_v1.5", "resnet50v1.5", "resnet50_v1b", "ResNet50_Weights.IMAGENET1K_V1", "resnet50_v1_5"}) {
    dict.notes = {{"arch", says}};
    EXPECT_NO_THROW(take(dict.weights(), model_of("resnet50"))) << says;
  }
}

TEST(Weights, AValueThatIsNotFiniteIsRefusedByTensorAndElementUnlessItIsNotTaken) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    StateDict dict("lenet");
    dict["fc2.weight"][7] = bad;
    expect_refused(dict.weights(), model_of("lenet"), {"file.safetensors", "element 7", "fc2.weight"});
    ModelConfig model = model_of("lenet");
    model.weights_except = {"fc2.weight"};
    EXPECT_NO_THROW(take(dict.weights(), model));
  }
}

TEST(Weights, AHeadOfOtherClassesIsRefusedUnlessItStartsAnew) {
  StateDict dict("lenet", 2);
  Weights weights = dict.weights();
  EXPECT_NE(take(weights, model_of("lenet", 2), {"cat", "dog"}).table.find("no names of them"), std::string::npos);   // nothing to compare
  weights.class_names = {"cat", "dog"};
  EXPECT_NO_THROW(take(weights, model_of("lenet", 2), {"cat", "dog"}));
  expect_refused(weights, model_of("lenet", 2), {"file.safetensors", "class 1", "\"dog\"", "\"horse\"", "model.weights_except=[\"fc3.*\"]"}, {"cat", "horse"});
  ModelConfig anew = model_of("lenet", 2);
  anew.weights_except = {"fc3.*"};
  EXPECT_NO_THROW(take(weights, anew, {"cat", "horse"}));
  EXPECT_NO_THROW(take(weights, model_of("lenet", 3), {"a", "b", "c"}));   // the head does not fit: it starts anew by itself
}

TEST(Weights, ASafetensorsHeaderWhoseLengthLooksLikeAPickleIsRead) {
  StateDict dict("lenet");
  for (std::size_t filled = 0; filled < 256; filled += 8) {   // headers are padded to multiples of 8: the length's first byte is 0x80 once
    dict.notes["filled"] = std::string(filled, 'x');
    ASSERT_EQ(dict.weights().file.form, "safetensors") << filled;
  }
}

TEST(Weights, AFileThatIsNoneOfTheseIsRefused) {
  const ScratchFolder folder;
  write_file(folder / "notes.txt", "weights of a network, by hand");
  for (const auto& [name, part] : {std::pair{"notes.txt", "no file of weights"}, {"none.pth", "cannot be opened"}, {"", "no regular file"}}) try {
      read_weights(folder / name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
}

/// torchvision's network with seeded weights and running statistics that are neither trivial nor far from the data.
const char* pretrained = R"(
import numpy as np, torch, torchvision
torch.set_num_threads(1)
torch.manual_seed(7)
model = torchvision.models.NAME(num_classes=1000)
images = torch.randn(4, 3, 64, 64)
for m in model.modules():
    if isinstance(m, torch.nn.BatchNorm2d):
        torch.nn.init.uniform_(m.weight, 0.5, 1), torch.nn.init.normal_(m.bias, 0, 0.1)
        m.momentum = 1
for m in model.modules():
    if hasattr(m, 'bn2'): getattr(m, 'bn3', m.bn2).weight.data *= 0.2   # as blocks of a trained network, they add little; else 50 amplify f32's rounding to 1e-4
model.train()(torch.randn(8, 3, 64, 64))
model.eval()
torch.save(model.state_dict(), 'weights.pth')
images.permute(0, 2, 3, 1).contiguous().numpy().tofile('images')
with torch.no_grad():
    model(images).double().numpy().tofile('f32'), model.double()(images.double()).numpy().tofile('f64')
)";

class PretrainedWeights : public testing::TestWithParam<const char*> {};

TEST_P(PretrainedWeights, GivePyTorchsFloat64LogitsAndGoBackIntoItsModelWithStrictNames) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const ScratchFolder folder;
  std::string script = pretrained;
  script.replace(script.find("NAME"), 4, GetParam());
  run_in(folder, script);
  const Weights weights = read_weights(folder / "weights.pth");

  TorchCase c;
  c.model = model_of(GetParam(), 1000), c.batch = 4, c.size = 64;
  TestNetwork network(c);
  TrainingState state;
  state.master.assign(static_cast<std::size_t>(network.parameters().elements()), 0.f), state.running.assign(static_cast<std::size_t>(network.parameters().buffer_elements()), 0.f);
  take_weights(weights, c.model, {}, network.parameters(), state);
  network.set({state.master, {}, state.running}, 0);
  network.set_batch(read_array<float>(folder / "images"), std::vector<std::int32_t>(4));
  const std::vector<float> ours = network.logits();
  const std::vector<double> truth = read_array<double>(folder / "f64"), torch = read_array<double>(folder / "f32");
  ASSERT_EQ(ours.size(), truth.size());
  double of_ours = 0, of_torch = 0, largest = 0;   // of_torch: what f32 makes of it there
  for (std::size_t i = 0; i < truth.size(); ++i) {
    of_ours = std::max(of_ours, std::abs(static_cast<double>(ours[i]) - truth[i])), of_torch = std::max(of_torch, std::abs(torch[i] - truth[i]));
    largest = std::max(largest, std::abs(truth[i]));
  }
  std::printf("%s: the largest logit is %.2f; errors in f32: ours %.1e, PyTorch's %.1e\n", GetParam(), largest, of_ours, of_torch);
  EXPECT_LT(of_ours, 1e-5 * largest);

  CheckpointHeader header;
  header.model = c.model.name, header.classes = 1000;
  write_checkpoint(folder / "checkpoint.h5", header, state, network.parameters(), [] {});
  const WeightFile stored = read_checkpoint_weights(folder / "checkpoint.h5", header);
  write_torch_file(folder / "back.pth", stored.arrays), write_safetensors(folder / "back.safetensors", stored.arrays, {});
  run_in(folder, text_of(R"(
import torch, torchvision
model = torchvision.models.)", GetParam(), R"((num_classes=1000)
model.load_state_dict(torch.load('back.pth', weights_only=True), strict=True)
assert all(torch.equal(v, model.state_dict()[k]) for k, v in torch.load('weights.pth').items() if not k.endswith('num_batches_tracked'))
)"));
}

INSTANTIATE_TEST_SUITE_P(All, PretrainedWeights, testing::Values("resnet34", "resnet50"), [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep::test
