// evaluate: every pass sees each image once, and what is recorded gives the bits of what is enqueued layer by layer.
#include "train/evaluate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "support/data_sets.hpp"
#include "support/train_network.hpp"

namespace lockstep::test {
namespace {

/// 50 images of 32 x 32 in 10 classes, evaluated in batches of 16: three full ones and one of two.
class EvaluatorTest : public ::testing::Test {
 protected:
  EvaluatorTest() {
    std::vector<TestImage> images;
    for (int i = 0; i < 50; ++i) images.push_back(test_image(32, 32, 100 + i, i % 7));
    write_split(folder_.path(), "val", images, 10, 2);
    dataset_ = std::make_unique<Dataset>(folder_.path(), "val");
    config_.data.global_batch = 4, config_.data.eval_batch = 16;
    config_.model.name = "lenet";
  }

  /// As many evaluations, one after another; `stopped`: before them one that is given up in its second batch.
  std::vector<Evaluation> run(int times, bool is_recorded, bool is_stopped = false) {
    Config config = config_;
    config.device.record = is_recorded;
    const RunPlan plan = plan_run(config, dataset_->header(), dataset_->size(), 1);
    Network network(device_, comm_, plan.config, plan.images);
    network.allocate();
    network.parameters().initialize(device_, 1);
    Progress progress;
    Evaluator evaluator(device_, comm_, network, *dataset_, plan, progress);
    int asked = 0;
    if (is_stopped) {
      EXPECT_FALSE(evaluator.run([&] { return ++asked == 2; }).has_value());
    }
    std::vector<Evaluation> results;
    for (int i = 0; i < times; ++i) results.push_back(evaluator.run([] { return false; }).value());
    return results;
  }

  ScratchFolder folder_;
  Device device_;
  OneRank comm_;
  Config config_;
  std::unique_ptr<Dataset> dataset_;
};

TEST_F(EvaluatorTest, EveryPassSeesEachImageOnceAlsoAfterOneThatWasGivenUp) {
  std::vector<std::int64_t> images_of(10);
  for (int i = 0; i < 50; ++i) ++images_of[static_cast<std::size_t>(i % 7)];
  for (const bool is_stopped : {false, true})
    for (const Evaluation& e : run(3, true, is_stopped)) {
      EXPECT_EQ(e.images, 50);
      EXPECT_EQ(e.class_images, images_of);
      for (std::size_t label = 0; label < 10; ++label) {
        std::int64_t predicted = 0;
        for (std::size_t i = 0; i < 10; ++i) predicted += e.confusion[10 * label + i];
        EXPECT_EQ(predicted, images_of[label]);
        EXPECT_EQ(e.confusion[10 * label + label], e.class_correct[label]);
      }
    }
}

TEST_F(EvaluatorTest, TheWorstMistakesAreThoseWithTheLargestLossesEachNamedOnce) {
  const Evaluation e = run(1, false)[0];
  const auto wrong = static_cast<std::size_t>(e.images - std::llround(e.top1 * static_cast<double>(e.images)));
  ASSERT_EQ(e.mistakes.size(), std::min(worst_mistakes, wrong));
  std::set<std::int64_t> images;
  for (std::size_t i = 0; i < e.mistakes.size(); ++i) {
    const Mistake& m = e.mistakes[i];
    EXPECT_EQ(m.label, m.image % 7);
    EXPECT_NE(m.predicted, m.label);
    EXPECT_LE(std::exp(-m.loss), m.probability);   // the label stands behind what was predicted
    EXPECT_TRUE(images.insert(m.image).second);
    if (i > 0) {
      EXPECT_LE(m.loss, e.mistakes[i - 1].loss);
    }
  }
}

TEST_F(EvaluatorTest, RecordedBatchesGiveTheBitsOfThoseEnqueuedLayerByLayer) {
  const Evaluation eager = run(1, false)[0];
  EXPECT_GT(eager.loss, 0);
  for (const Evaluation& recorded : run(3, true)) {
    EXPECT_EQ(recorded.loss, eager.loss);
    EXPECT_EQ(recorded.top1, eager.top1);
    EXPECT_EQ(recorded.top5, eager.top5);
    EXPECT_EQ(recorded.confusion, eager.confusion);
  }
}

}  // namespace
}  // namespace lockstep::test
