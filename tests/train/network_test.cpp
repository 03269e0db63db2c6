// network: which parameters patterns mean, for frozen ones and for rates of their own.
#include "train/network.hpp"

#include <gtest/gtest.h>

#include "support/train_network.hpp"
#include "train/weights.hpp"

namespace lockstep::test {
namespace {

Parameters lenet() {
  ModelConfig model;
  model.name = "lenet", model.classes = 10;
  const Graph graph = model_graph(model);
  return Parameters(finish_order(graph), {}, DType::f32);
}

TEST(Network, APatternsFactorIsThatOfTheFirstPatternThatMatches) {
  Parameters parameters = lenet();
  scale_rates(parameters, {.rate_parameters = {"fc3.*", "*.bias", "conv1.weight"}, .rate_factors = {10, 2, 0.5}});
  for (const Slice& slice : parameters.slices()) {
    const std::string& name = slice.spec.name;
    EXPECT_EQ(slice.rate_factor, name.starts_with("fc3.") ? 10 : name.ends_with(".bias") ? 2 : name == "conv1.weight" ? 0.5 : 1) << name;
  }
}

TEST(Network, APatternOfRatesThatMeansNothingIsNamed) {
  Parameters parameters = lenet();
  try {
    scale_rates(parameters, {.rate_parameters = {"fc9.*"}, .rate_factors = {10}});
    FAIL() << "taken";
  } catch (const Error& error) {
    for (const char* part : {"optimizer.rate_parameters", "fc9.*", "fc3.bias"}) EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Network, MoreDifferentRatesThanTheUpdateHoldsAreRefused) {
  TorchCase c;
  c.model.name = "resnet20", c.model.classes = 10;
  const Graph graph = model_graph(c.model);
  for (const ParameterSpec& spec : graph.parameter_specs()) {
    c.optimizer.rate_parameters.push_back(spec.name);
    c.optimizer.rate_factors.push_back(static_cast<double>(c.optimizer.rate_factors.size() + 2));
  }
  try {
    const TestNetwork network(c);
    FAIL() << "taken";
  } catch (const Error& error) {
    for (const char* part : {"optimizer.rate_factors", "59", "16"}) EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  c.optimizer.rate_parameters.resize(15), c.optimizer.rate_factors.resize(15);
  EXPECT_NO_THROW(TestNetwork{c});
}

}  // namespace
}  // namespace lockstep::test
