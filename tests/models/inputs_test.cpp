// Every file of inputs/ is legal, builds its network, and has the rates that its recipe asks for.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "models/models.hpp"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

const fs::path inputs = fs::path(__FILE__).parent_path().parent_path().parent_path() / "inputs";

std::vector<fs::path> all_inputs() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(inputs))
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

TEST(Inputs, EachIsReadHasOneBatchAndBuildsItsNetwork) {
  const auto files = all_inputs();
  EXPECT_GE(files.size(), 13u);
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.filename().string());
    Config config = read_config(file.string(), {});
    EXPECT_EQ(config.run.name, file.stem().string());
    EXPECT_TRUE(config.data.path.starts_with("outputs/data/"));
    EXPECT_EQ((config.data.global_batch > 0) + (config.data.rank_batch > 0), 1);
    std::ifstream in(file);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (config.precision != "fp32") { EXPECT_NE(text.find("precision=fp32        # on CPUs"), std::string::npos); }   // so that each runs on a CPU too
    const std::int64_t size = config.augment.size > 0 ? config.augment.size : 32;
    if (config.model.classes == 0) config.model.classes = 10;
    Graph graph({2, size, size, 3});
    EXPECT_EQ(build_model(graph, config.model).shape(), (Shape{2, 1, 1, config.model.classes}));
  }
}

TEST(Inputs, EachHeadNamesWhatItReproducesWhatToExpectItsDataAndHowToRunIt) {
  for (const fs::path& file : all_inputs()) {
    SCOPED_TRACE(file.filename().string());
    std::ifstream in(file);
    std::string head;
    for (std::string line; std::getline(in, line) && line.starts_with("#");) head += line + "\n";
    for (const char* word : {"# Reference:", "# Expect:", "# Data:", "# Run:"}) EXPECT_NE(head.find(word), std::string::npos) << word;
    EXPECT_NE(head.find("inputs/" + file.filename().string()), std::string::npos);
    EXPECT_NE(head.find(read_config(file.string(), {}).data.path), std::string::npos);   // the convert command makes what is read
  }
}

TEST(Inputs, EachIsListedInTheReadme) {
  std::ifstream in(inputs / "README.md");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  for (const fs::path& file : all_inputs()) {
    const std::string name = file.stem().string();
    // "cifar10_resnet20, 32, 44, 56, 110.toml" names five.
    const bool is_he = name.starts_with("cifar10_resnet") && name.find("ddp") == std::string::npos;
    const std::string word = is_he ? name.substr(std::string("cifar10_resnet").size()) : name + ".toml";
    EXPECT_NE(text.find(word), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace lockstep::test
