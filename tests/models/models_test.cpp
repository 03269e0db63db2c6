// Every model against torchvision's state_dict: names, shapes and order of parameters and buffers; sizes of images and outputs.
#include <gtest/gtest.h>

#include <algorithm>

#include "models/models.hpp"
#include "support/models_torch.hpp"

namespace lockstep::test {
namespace {

struct Case {
  std::string name, stem = "imagenet";
};
/// Every model, the deep ones with both stems.
std::vector<Case> cases() {
  std::vector<Case> found;
  for (const ModelEntry& model : models()) {
    found.push_back({model.name});
    if (model.build == build_resnet) found.push_back({model.name, "cifar"});
  }
  return found;
}

ModelConfig config_of(const Case& c, std::int64_t classes) {
  ModelConfig config;
  config.name = c.name, config.stem = c.stem, config.classes = classes;
  return config;
}

/// What recipes feed it.
std::int64_t usual_image(const Case& c) { return c.name == "alexnet" || (c.name.size() == 8 && c.stem == "imagenet") ? 224 : 32; }

/// One line a tensor, as the script below prints them.
std::string listing(const Graph& graph) {
  std::ostringstream text;
  for (const ParameterSpec& spec : graph.parameter_specs()) {
    text << "parameter " << spec.name;
    for (const std::int64_t extent : spec.file_shape) text << " " << extent;
    text << "\n";
  }
  for (const BufferSpec& spec : graph.buffer_specs()) text << "buffer " << spec.name << " " << spec.channels << "\n";
  return text.str();
}

TEST(Models, ParametersAndBuffersAreTorchvisionsInNameShapeAndOrder) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const ScratchFolder folder;
  std::string script = python_models();
  for (const Case& c : cases()) script += text_of("m = make('", c.name, "', 7, '", c.stem, "')\n") +
      "with open('" + c.name + "-" + c.stem + "', 'w') as f:\n"
      "    for k, v in m.named_parameters(): print('parameter', k, *v.shape, file=f)\n"
      "    for k, v in m.named_buffers():\n"
      "        if not k.endswith('num_batches_tracked'): print('buffer', k, *v.shape, file=f)\n"
      "    names = [k for k in m.state_dict() if k.split('.')[-1] in ('weight', 'bias')]\n"
      "    assert names == [k for k, _ in m.named_parameters()]\n";
  run_in(folder, script);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name + " " + c.stem);
    const std::int64_t size = usual_image(c);
    Graph graph({2, size, size, 3});
    const Value logits = build_model(graph, config_of(c, 7));
    EXPECT_EQ(logits.shape(), (Shape{2, 1, 1, 7}));
    EXPECT_EQ(listing(graph), read_file(folder / (c.name + "-" + c.stem)));
  }
}

TEST(Models, ParametersHaveTheStoredShapeOfTheirFileShapeAndTheirOrdinal) {
  for (const Case& c : cases()) {
    const std::int64_t size = usual_image(c);
    Graph graph({2, size, size, 3});
    build_model(graph, config_of(c, 7));
    int ordinal = 0;
    for (const ParameterSpec& spec : graph.parameter_specs()) {
      std::int64_t count = 1;
      for (const std::int64_t extent : spec.file_shape) count *= extent;
      EXPECT_EQ(spec.shape.size(), count) << c.name << " " << spec.name;
      EXPECT_EQ(spec.ordinal, ordinal++);
      EXPECT_EQ(spec.is_norm_or_bias, spec.file_shape.size() == 1) << spec.name;
    }
  }
}

TEST(Models, CifarResNetsHaveThePapersNumberOfParameters) {
  // He et al. 2015, table 6, millions of parameters.
  for (const auto& [name, millions] : {std::pair{"resnet20", 0.27}, std::pair{"resnet32", 0.46}, std::pair{"resnet44", 0.66}, std::pair{"resnet56", 0.85},
                                       std::pair{"resnet110", 1.7}}) {
    Graph graph({1, 32, 32, 3});
    build_model(graph, config_of({name}, 10));
    double parameters = 0;
    for (const ParameterSpec& spec : graph.parameter_specs()) parameters += static_cast<double>(spec.shape.size());
    EXPECT_NEAR(parameters / 1e6, millions, millions < 1 ? 0.005 : 0.05) << name;
  }
}

TEST(Models, TheSmallestImageIsTakenAndOnePixelLessIsRefusedByName) {
  for (const ModelEntry& model : models()) {
    SCOPED_TRACE(model.name);
    const std::int64_t least = model.smallest_image;
    Graph graph({1, least, least, 3});
    EXPECT_EQ(build_model(graph, config_of({model.name}, 3)).shape(), (Shape{1, 1, 1, 3}));
    for (const Shape& image : {Shape{1, least - 1, least, 3}, Shape{1, least, least - 1, 3}}) {
      if (least == 1) continue;
      Graph small(image);
      try {
        build_model(small, config_of({model.name}, 3));
        FAIL() << "built";
      } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_EQ(error.code(), exit_bad_input);
        for (const std::string& part : {std::string(model.name), text_of(image.h, " x ", image.w), text_of(least, " x ", least)})
          EXPECT_NE(message.find(part), std::string::npos) << message;
      }
    }
  }
}

TEST(Models, AnUnknownNameIsAnsweredWithTheNearest) {
  Graph graph({1, 32, 32, 3});
  try {
    build_model(graph, config_of({"resnet19"}, 10));
    FAIL() << "built";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Did you mean \"resnet1"), std::string::npos) << error.what();
  }
}

TEST(Models, TheConfigurationNamesTheSameModels) {
  // one_of(...) in base/config.hpp repeats the table: base cannot see models.
  for (const ModelEntry& model : models()) EXPECT_NO_THROW(parse_config(text_of("[model]\nname = \"", model.name, "\"\n"), "test"));
  EXPECT_THROW(parse_config("[model]\nname = \"resnet19\"\n", "test"), Error);
}

TEST(Models, ZeroInitResidualStartsTheLastScaleOfEachBlockAtZeroAndNothingElse) {
  for (const auto& [name, last, blocks] :
       {std::tuple{"resnet18", "bn2.weight", 8}, std::tuple{"resnet50", "bn3.weight", 16}, std::tuple{"resnet20", "bn2.weight", 9}}) {
    int zeros = 0;
    ModelConfig config = config_of({name}, 10);
    config.zero_init_residual = true;
    Graph graph({1, 64, 64, 3}), plain({1, 64, 64, 3});
    build_model(graph, config), build_model(plain, config_of({name}, 10));
    for (std::size_t i = 0; i < graph.parameter_specs().size(); ++i) {
      const ParameterSpec& spec = graph.parameter_specs()[i];
      if (spec.init.value == plain.parameter_specs()[i].init.value) continue;
      EXPECT_EQ(spec.init.value, 0);
      EXPECT_TRUE(spec.name.ends_with(last)) << spec.name;
      ++zeros;
    }
    EXPECT_EQ(zeros, blocks) << name;
  }
}

}  // namespace
}  // namespace lockstep::test
