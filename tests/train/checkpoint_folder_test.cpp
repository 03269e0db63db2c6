#include "train/checkpoint_folder.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/random.hpp"
#include "graph/tasks.hpp"
#include "models/models.hpp"
#include "support/limits.hpp"
#include "support/scratch.hpp"
#include "train/weights.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// LeNet's weights as they are drawn, as a checkpoint of a given step: about 250 KB.
class Checkpoints : public ::testing::Test {
 protected:
  Checkpoints() : graph_(model_graph(config())), layout_(finish_order(graph_), std::vector<BufferSpec>(graph_.buffer_specs().begin(), graph_.buffer_specs().end()), DType::f32) {}
  static ModelConfig config() {
    ModelConfig model;
    model.name = "lenet", model.classes = 10;
    return model;
  }
  CheckpointHeader header() const { return {.model = "lenet", .classes = 10, .class_names = {}, .global_batch = 8, .config = "", .fit = "", .rotate = "", .versions = ""}; }
  TrainingState state(std::int64_t step) const {
    Parameters::Start start = layout_.start_values(static_cast<std::uint64_t>(step));
    TrainingState state;
    state.progress.step = step;
    state.master = std::move(start.master), state.running = std::move(start.running);
    return state;
  }
  std::string path(std::int64_t step) const { return folder_ / checkpoint_name(step); }
  void write(std::int64_t step) { write_checkpoint(path(step), header(), state(step), layout_, [] {}); }
  static std::ptrdiff_t entries(const std::string& folder) { return std::distance(fs::directory_iterator(folder), fs::directory_iterator()); }
  static std::ptrdiff_t open_files() { return entries("/proc/self/fd"); }
  std::ptrdiff_t files() const { return entries(folder_.path()); }

  ScratchFolder folder_;
  Graph graph_;
  Parameters layout_;
};

TEST_F(Checkpoints, ADamagedOneIsNamedAndNeverTakenAndTheOneBeforeIs) {
  write(1), write(2);
  const std::string older = read_file(path(1)), whole = read_file(path(2));
  const auto refuse = [&](const std::string& damaged, const std::string& how) {
    write_file(path(2), damaged);
    const Found found = newest_valid(folder_.path());
    ASSERT_EQ(found.path, path(1)) << how;
    ASSERT_EQ(found.refused.size(), 1u) << how;
    EXPECT_EQ(found.refused[0].find(path(2) + " "), 0u) << found.refused[0];
    try {
      read_checkpoint(path(2), layout_, config(), false, {});
      ADD_FAILURE() << how;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find(path(2)), 0u) << error.what();
    }
  };
  for (std::size_t percent = 0; percent < 100; ++percent) refuse(whole.substr(0, whole.size() * percent / 100), std::to_string(percent) + " %");
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Bits4 bits = random_bits(7, Purpose::bench, 0, i);
    const std::uint64_t bit = below(whole.size() * 8, bits[0], bits[1]);
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    refuse(damaged, "bit " + std::to_string(bit));
  }
  EXPECT_EQ(read_file(path(1)), older);
  write_file(path(2), whole);
  EXPECT_EQ(newest_valid(folder_.path()).path, path(2));
  EXPECT_EQ(read_checkpoint(path(2), layout_, config(), false, {}).master, state(2).master);
}

TEST_F(Checkpoints, AWriteThatFailsAtAnyByteIsSaidOnceTriedAgainAndLosesNothing) {
  write(1);
  const std::string older = read_file(path(1));
  std::string said;
  CheckpointConfig config;
  config.keep_last = 0;
  CheckpointWriter writer(folder_.path(), config, 1, [&](const std::string& line) { said += line + "\n"; }, [] {});
  const std::ptrdiff_t opened = open_files();
  {
    std::int64_t step = 2;
    for (std::size_t part = 0; part < 40; ++part) {
      const LoweredLimit limit(RLIMIT_FSIZE, older.size() * part / 40);
      writer.write(header(), state(step++), layout_);
      EXPECT_THROW(writer.finish(), Error) << part;
    }
    EXPECT_EQ(said.find("warning: no checkpoint at step 2: " + path(2)), 0u) << said;
    EXPECT_EQ(said.find("warning: ", 1), std::string::npos) << said;
    EXPECT_EQ(files(), 1);
    EXPECT_EQ(open_files(), opened) << "the disk keeps what an open file holds";
    EXPECT_EQ(read_file(path(1)), older);
    writer.write(header(), state(step), layout_);
    EXPECT_NO_THROW(writer.finish());
    EXPECT_EQ(newest_valid(folder_.path()).path, path(step));
    EXPECT_EQ(read_checkpoint(path(step), layout_, this->config(), false, {}).master, state(step).master);
  }
  const LoweredLimit limit(RLIMIT_FSIZE, 1000);   // a new trouble is said again
  writer.write(header(), state(100), layout_);
  EXPECT_THROW(writer.finish(), Error);
  EXPECT_NE(said.find("warning: no checkpoint at step 100: "), std::string::npos) << said;
}

}  // namespace
}  // namespace lockstep
