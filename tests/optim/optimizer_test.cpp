// What an optimizer decides on the device: skip, diverge, clip, freeze, which weights have a 16-bit copy, what becomes of batch norm's statistics.
#include <gtest/gtest.h>

#include <limits>

#include "support/optim_fixture.hpp"

namespace lockstep::test {
namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

/// Gradients of one step, the same for every training that calls it.
void put_gradients(Training& training, int step, float scale = 1) {
  const auto slices = training.parameters().slices();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    std::vector<float> g = noise(slices[i].count, 100 + static_cast<std::size_t>(step) * 10 + i, 0.1);
    for (float& value : g) value *= scale;
    training.put_grad(static_cast<int>(i), g);
  }
}

void put_one(Training& training, int slice, std::size_t at, float value) {
  auto g = training.grads(slice);
  g[at] = value;
  training.put_grad(slice, g);
}

Training::Options fp16_options(const char* kind = "sgd") {
  Training::Options options;
  options.config.kind = kind;
  options.rates = {0.4f, 0.3f, 0.2f, 0.1f};
  options.is_scaling = true;
  options.compute = DType::f16;
  return options;
}

double squares(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return sum;
}

TEST(OptimizerSkip, AStepWithANonFiniteGradientOrLossLeavesNoTraceButTheScaleAndItsCounters) {
  for (const char* kind : {"sgd", "adamw"})
    for (const int fault : {0, 1, 2}) {
      SCOPED_TRACE(text_of(kind, ", fault ", fault));
      Training smooth(fp16_options(kind)), stumbling(fp16_options(kind));
      for (int s = 0; s < 4; ++s) {
        if (s == 2) {
          put_gradients(stumbling, 99, stumbling.step().loss_scale);
          stumbling.put_candidate(nan_value);
          if (fault == 0) put_one(stumbling, 3, 5000, nan_value);        // the last element of the last slice
          if (fault == 1) put_one(stumbling, 1, 0, -infinity);
          const auto before = stumbling.all_weights();
          stumbling.update(fault == 2 ? 1.f : 0.f);
          EXPECT_EQ(stumbling.all_weights(), before);
          EXPECT_EQ(stumbling.candidate(), stumbling.running());
          const OptimizerStatus status = stumbling.status();
          EXPECT_EQ(status.skipped, 1);
          EXPECT_EQ(status.skipped_in_row, 1);
          EXPECT_EQ(status.good_in_row, 0);
          EXPECT_EQ(status.updates, 2);
          EXPECT_EQ(status.diverged_step, -1);
          EXPECT_EQ(status.loss_scale, 32768);
          EXPECT_EQ(stumbling.step().loss_scale, 32768);
          EXPECT_EQ(stumbling.step().updates, 2);
        }
        for (Training* t : {&smooth, &stumbling}) {
          put_gradients(*t, s, t->step().loss_scale);
          t->put_candidate(static_cast<float>(s));
          t->update();
        }
      }
      // The scale is a power of two, so the numbers after it is divided out again are the same.
      EXPECT_EQ(smooth.all_weights(), stumbling.all_weights());
      for (std::size_t i = 0; i < smooth.optimizer().moments().size(); ++i) EXPECT_EQ(smooth.moment(i), stumbling.moment(i));
      EXPECT_EQ(smooth.running(), stumbling.running());
      EXPECT_EQ(stumbling.status().updates, 4);
      EXPECT_EQ(stumbling.status().skipped_in_row, 0);
      EXPECT_EQ(stumbling.status().skipped, 1);
    }
}

TEST(OptimizerSkip, TheScaleDoublesAfterTwoThousandGoodStepsInARow) {
  Training training(fp16_options());
  OptimizerStatus status = training.status();
  status.good_in_row = 1998;
  training.set_status(status);
  training.update();
  EXPECT_EQ(training.status().loss_scale, 65536);
  EXPECT_EQ(training.status().good_in_row, 1999);
  training.update();
  EXPECT_EQ(training.status().loss_scale, 131072);
  EXPECT_EQ(training.step().loss_scale, 131072);
  EXPECT_EQ(training.status().good_in_row, 0);
}

TEST(OptimizerSkip, AScaleThatTheInputFixesStaysWhateverHappens) {
  Training::Options options = fp16_options();
  options.config.loss_scale = 128;
  Training training(options);
  EXPECT_EQ(training.step().loss_scale, 128);
  put_gradients(training, 0, 128);
  put_one(training, 0, 0, infinity);
  const auto before = training.all_weights();
  training.update();
  EXPECT_EQ(training.all_weights(), before);
  EXPECT_EQ(training.status().skipped, 1);
  EXPECT_EQ(training.step().loss_scale, 128);
  OptimizerStatus status = training.status();
  status.good_in_row = 1999;
  training.set_status(status);
  put_gradients(training, 0, 128);
  training.update();
  EXPECT_NE(training.all_weights(), before);
  EXPECT_EQ(training.step().loss_scale, 128);
  EXPECT_EQ(training.status().loss_scale, 128);
}

TEST(OptimizerSkip, TheScaleStaysAUsableNumberHoweverLongOverflowsLast) {
  Training training(fp16_options());
  put_gradients(training, 0);
  for (int s = 0; s < 200; ++s) training.update(1);
  EXPECT_GT(training.status().loss_scale, std::numeric_limits<float>::min());
  EXPECT_EQ(training.status().skipped_in_row, 200);
}

TEST(OptimizerDiverge, WithoutScalingTheFirstNonFiniteStepIsNamedAndAllLaterUpdatesAreOff) {
  for (const bool is_loss : {false, true}) {
    Training training;
    for (int s = 0; s < 3; ++s) put_gradients(training, s), training.update();
    const auto weights = training.all_weights();
    const auto moment = training.moment(0);
    const auto running = training.running();
    training.put_candidate(5);
    if (!is_loss) put_one(training, 0, 129, infinity);
    training.update(is_loss ? 3.f : 0.f);
    for (int s = 4; s < 6; ++s) put_gradients(training, s), training.put_candidate(6), training.update();
    EXPECT_EQ(training.status().diverged_step, 3);
    EXPECT_EQ(training.status().updates, 3);
    EXPECT_EQ(training.status().skipped, 0);
    EXPECT_EQ(training.step().updates, 3);
    EXPECT_EQ(training.all_weights(), weights);
    EXPECT_EQ(training.moment(0), moment);
    EXPECT_EQ(training.running(), running);
    EXPECT_EQ(training.candidate(), running);
  }
}

TEST(OptimizerDiverge, ATrialRunWithDivergedStepSetChangesNothingAtAll) {
  for (const bool is_scaling : {false, true}) {
    Training::Options options = fp16_options("adamw");
    options.is_scaling = is_scaling;
    Training training(options);
    const OptimizerStatus start = training.status();
    const auto weights = training.all_weights(), running = training.running();
    OptimizerStatus off = start;
    off.diverged_step = 0;
    training.set_status(off);
    put_gradients(training, 0), training.put_candidate(9), training.update();
    put_one(training, 0, 0, nan_value), training.update(1);
    training.set_status(start);
    const OptimizerStatus after = training.status();
    EXPECT_EQ(after.updates, 0);
    EXPECT_EQ(after.skipped, 0);
    EXPECT_EQ(after.loss_scale, start.loss_scale);
    EXPECT_EQ(training.all_weights(), weights);
    EXPECT_EQ(training.running(), running);
    EXPECT_EQ(training.candidate(), running);
    EXPECT_EQ(squares(training.moment(0)) + squares(training.moment(1)), 0);
  }
}

TEST(OptimizerUpdate, GradNormIsThatOfTheTrainedGradientsUnscaledAndBeforeClipping) {
  Training::Options options;
  options.config.clip_norm = 0.01;
  options.frozen = "norm.weight";
  Training training(options);
  StepState step = training.step();
  step.loss_scale = 128;
  training.put_step(step);
  put_gradients(training, 0, 128);
  double sum = 0;
  for (const int slice : {0, 1, 3}) sum += squares(training.grads(slice));
  put_one(training, 2, 3, nan_value);     // frozen: nobody writes this gradient, nobody reads it
  const auto before = training.all_weights();
  training.update();
  const OptimizerStatus status = training.status();
  EXPECT_EQ(status.updates, 1);
  EXPECT_EQ(status.diverged_step, -1);
  EXPECT_NEAR(status.grad_norm, std::sqrt(sum) / 128, 1e-6 * status.grad_norm);   // one rounding to f32
  EXPECT_EQ(status.loss_scale, 128);
  // rate 0.1, no momentum yet, decay 1e-4 of weights that are 0 here: the step's length is rate x clip_norm.
  const auto after = training.all_weights();
  double moved = 0;
  for (std::size_t i = 0; i < after.size(); ++i) moved += (after[i] - before[i]) * static_cast<double>(after[i] - before[i]);
  EXPECT_NEAR(std::sqrt(moved), 0.1 * 0.01, 1e-6 * 0.001 + 0.1 * 1e-6);           // + 1e-6 in clip_grad_norm_'s denominator
}

TEST(OptimizerUpdate, AFrozenSliceHasNoDecayNoMomentumAndNoUpdate) {
  for (const char* kind : {"sgd", "adamw"}) {
    Training::Options options;
    options.config.kind = kind, options.config.weight_decay = 0.5;
    options.frozen = "fc.weight";
    Training training(options);
    const std::vector<float> start = noise(130, 3);
    training.put_weights(0, start);
    for (int s = 0; s < 3; ++s) put_gradients(training, s), training.update();
    EXPECT_EQ(training.weights(0), start);
    const Slice& frozen = training.parameters().slices()[0];
    const auto moment = training.moment(0);
    for (std::int64_t i = 0; i < frozen.count; ++i) ASSERT_EQ(moment[static_cast<std::size_t>(frozen.offset + i)], 0);
    EXPECT_GT(squares(training.weights(3)), 0);
  }
}

TEST(OptimizerUpdate, DecayLeavesNormsAndBiasesAloneIfToldTo) {
  for (const char* kind : {"sgd", "adamw"})
    for (const bool decays_all : {true, false}) {
      Training::Options options;
      options.config.kind = kind, options.config.weight_decay = 0.5, options.config.decay_norm_and_bias = decays_all;
      Training training(options);
      const auto slices = training.parameters().slices();
      for (std::size_t i = 0; i < slices.size(); ++i)
        training.put_weights(static_cast<int>(i), std::vector<float>(static_cast<std::size_t>(slices[i].count), 1.f));
      training.update();                  // gradients are 0: only decay moves weights, to 1 - 0.1 x 0.5
      for (std::size_t i = 0; i < slices.size(); ++i)
        for (const float w : training.weights(static_cast<int>(i))) ASSERT_FLOAT_EQ(w, decays_all || !slices[i].spec.is_norm_or_bias ? 0.95f : 1.f);
    }
}

TEST(OptimizerUpdate, TheRateIsTheTablesAtTheNumberOfUpdatesTimesThePlateauFactorAndTheLastBeyondItsEnd) {
  Training::Options options;
  options.config.momentum = 0, options.config.weight_decay = 0;
  options.rates = {1.f, 2.f};
  Training training(options);
  float expected = 0;
  for (const float rate : {1.f, 2.f, 2.f, 0.5f}) {
    StepState step = training.step();
    step.plateau_factor = rate == 0.5f ? 0.25f : 1.f;
    training.put_step(step);
    training.put_grad(1, std::vector<float>(10, 1.f));
    training.update();
    expected -= rate;
    EXPECT_EQ(training.weights(1)[9], expected);
  }
  EXPECT_TRUE(training.optimizer().moments().empty());
}

TEST(OptimizerUpdate, TheComputeCopyOfWeightsFollowsTheMasterAndNormsHaveNone) {
  for (const char* kind : {"sgd", "adamw"}) {
    Training training(fp16_options(kind));
    for (int s = 0; s < 2; ++s) put_gradients(training, s, training.step().loss_scale), training.update();
    const auto master = training.all_weights();
    const auto copy = training.get<f16>(training.parameters().memory().compute.data, training.parameters().elements());
    for (const Slice& slice : training.parameters().slices())
      for (std::int64_t i = slice.offset; i < slice.offset + slice.count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_NE(master[at], 0.f);
        ASSERT_EQ(static_cast<float>(copy[at]), slice.spec.is_norm_or_bias ? 0.f : static_cast<float>(f16(master[at]))) << slice.spec.name;
      }
  }
}

TEST(OptimizerUpdate, GradientsLeftInSixteenBitsMakeTheUpdateThatTheSameNumbersInF32Make) {
  for (const char* kind : {"sgd", "adamw"})
    for (const DType compute : {DType::f16, DType::bf16}) {
      Training::Options options = fp16_options(kind);
      options.compute = compute, options.config.clip_norm = 0.5;
      Training wide(options);
      options.gradients = Gradients::as_computed;
      Training narrow(options);
      int narrow_slices = 0;
      for (int s = 0; s < 3; ++s) {
        put_gradients(narrow, s, 1024);
        const auto slices = narrow.parameters().slices();
        for (std::size_t i = 0; i < slices.size(); ++i) {
          narrow_slices += slices[i].grad_dtype == compute;
          wide.put_grad(static_cast<int>(i), narrow.grads(static_cast<int>(i)));
        }
        narrow.update(), wide.update();
        EXPECT_EQ(narrow.status().grad_norm, wide.status().grad_norm);
      }
      EXPECT_GT(narrow_slices, 0);
      EXPECT_EQ(narrow.all_weights(), wide.all_weights());
      EXPECT_EQ(narrow.moment(0), wide.moment(0));
      EXPECT_LT(narrow.parameters().gradient_elements(), wide.parameters().gradient_elements());
    }
}

TEST(OptimizerUpdate, AKeptStepMakesTheCandidateStatisticsTheRunningOnes) {
  Training training;
  training.put_candidate(3);
  training.update();
  EXPECT_EQ(training.running(), training.candidate());
  EXPECT_EQ(training.running()[4], 3.f);
}

TEST(OptimizerState, StatusAndMomentsCarriedOverToAnotherOptimizerGoOnWithTheSameBits) {
  for (const char* kind : {"sgd", "adamw"}) {
    Training whole(fp16_options(kind)), second(fp16_options(kind));
    for (int s = 0; s < 2; ++s) put_gradients(whole, s, whole.step().loss_scale), whole.update();
    for (std::size_t i = 0; i < whole.parameters().slices().size(); ++i) second.put_weights(static_cast<int>(i), whole.weights(static_cast<int>(i)));
    for (std::size_t i = 0; i < whole.optimizer().moments().size(); ++i) second.put(second.optimizer().moments()[i].values.data, whole.moment(i));
    second.set_status(whole.status());
    EXPECT_EQ(second.step().updates, 2);
    for (Training* t : {&whole, &second}) put_gradients(*t, 2, t->step().loss_scale), t->update();
    EXPECT_EQ(whole.all_weights(), second.all_weights());
  }
}

TEST(OptimizerState, MomentsAreNamedAsPyTorchsAndTheirBytesAreForeseen) {
  Training sgd;
  ASSERT_EQ(sgd.optimizer().moments().size(), 1u);
  EXPECT_EQ(sgd.optimizer().moments()[0].name, "momentum_buffer");
  Training adamw(fp16_options("adamw"));
  ASSERT_EQ(adamw.optimizer().moments().size(), 2u);
  EXPECT_EQ(adamw.optimizer().moments()[0].name, "exp_avg");
  EXPECT_EQ(adamw.optimizer().moments()[1].name, "exp_avg_sq");
  const std::int64_t elements = sgd.parameters().elements();
  EXPECT_EQ(moment_bytes(fp16_options("adamw").config, elements), 2 * moment_bytes(OptimizerConfig(), elements));
  EXPECT_GE(sgd.optimizer().state_bytes(), moment_bytes(OptimizerConfig(), elements));
}

}  // namespace
}  // namespace lockstep::test
