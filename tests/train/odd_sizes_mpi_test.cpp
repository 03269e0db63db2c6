// Odd sizes: whatever the numbers of images, of images a step, of ranks and of micro-batches, and whoever shares batch norm statistics, every image counts
// once, in training and in evaluation, and losses, gradients and weights are those of a float64 model of the run.  Whole runs by the trainer, one after another.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>

#include "data/sampler.hpp"
#include "graph/tasks.hpp"
#include "models/models.hpp"
#include "support/data_sets.hpp"
#include "support/train_float64.hpp"
#include "train/trainer.hpp"

namespace lockstep {

/// This program's network, which the linker takes instead of models/cifar_resnet.cpp: "resnet20" is small here.
Value build_cifar_resnet(Value images, const ModelConfig&) { return test::build_small_network(images); }

namespace test {
namespace {

namespace fs = std::filesystem;
constexpr double rate = 0.005, momentum = 0.9, decay = 1e-3;
constexpr int classes = small_classes;

struct Case {
  std::int64_t images = 0, batch = 0, micro_batches = 1;
  std::string last_batch, statistics;    // statistics: "local", "grouped", "all"
  std::string text() const { return text_of(images, " images, ", batch, " a step, ", last_batch, ", ", micro_batches, " parts, statistics ", statistics); }
};

/// Nothing is printed while it lives: a thousand runs say much.
class Silence {
 public:
  Silence() : output_(::dup(1)) {
    std::cout.flush(), std::fflush(stdout);
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, 1), ::close(nowhere);
  }
  ~Silence() { std::cout.flush(), std::fflush(stdout), ::dup2(output_, 1), ::close(output_); }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  int output_;
};

/// The index-th of nearly equal parts of `items`, the longer ones first.
template <class T>
std::vector<T> cut(const std::vector<T>& items, std::int64_t index, std::int64_t parts) {
  const std::int64_t n = std::ssize(items), floor = n / parts, longer = n % parts;
  const auto begin = items.begin() + index * floor + std::min(index, longer);
  return {begin, begin + floor + (index < longer ? 1 : 0)};
}

std::vector<LabelledImage> images_of(const std::vector<TestImage>& stored) {
  std::vector<LabelledImage> images;
  for (const TestImage& image : stored) {
    LabelledImage& made = images.emplace_back();
    for (const std::uint8_t pixel : image.pixels) made.pixels.push_back((pixel / 255.0 - 0.5) / 0.25);   // the mean and std that write_split gives
    made.label = image.label;
  }
  return images;
}

/// Noise on a colour: far enough apart for two images to be a batch.
std::vector<TestImage> small_images(std::int64_t count, std::uint64_t stream) {
  std::vector<TestImage> images;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto label = static_cast<std::int32_t>((i * 7 + i / 3) % classes);
    TestImage& image = images.emplace_back(TestImage{small_size, small_size, label, {}});
    const std::vector<float> colour = noise(3, stream + static_cast<std::uint64_t>(i), 60, 100 + 30 * label), grain = noise(small_size * small_size * 3, stream + 500 + static_cast<std::uint64_t>(i), 40);
    for (std::size_t j = 0; j < grain.size(); ++j) image.pixels.push_back(static_cast<std::uint8_t>(std::clamp(colour[j % 3] + grain[j], 0.f, 255.f)));
  }
  return images;
}

struct Data {
  std::vector<LabelledImage> train, eval;
  std::unique_ptr<Dataset> train_set, eval_set;
};

/// What a run leaves behind, on rank 0.
struct Outcome {
  std::vector<TrainRecord> steps;
  std::vector<EvalRecord> evals;
  TrainingState state;
};

/// Largest relative errors that were met.
struct Worst {
  double loss = 0, grad_norm = 0, eval_loss = 0, weights = 0, statistics = 0, tolerance = 0;
  void see(double& most, double error) { most = std::max(most, std::isfinite(error) ? error : 1e30); }
};

class OddSizes : public testing::Test {
 protected:
  OddSizes() : comm_(make_communicator()) {
    const std::string mine = comm_->rank() == 0 ? folder_.path() : "";
    root_ = comm_->broadcast(mine, 0);
    comm_->count_calls(&progress_.calls);
  }
  ~OddSizes() override { comm_->count_calls(nullptr), comm_->barrier(); }

  Data data_of(std::int64_t images) {
    const std::string path = text_of(root_, "/data-", images);
    const std::vector<TestImage> train = small_images(images, 1000), eval = small_images(images, 9000);
    if (comm_->rank() == 0) fs::create_directories(path), write_split(path, "train", train, classes, 1), write_split(path, "val", eval, classes, 1);
    comm_->barrier();
    return {images_of(train), images_of(eval), std::make_unique<Dataset>(path, "train"), std::make_unique<Dataset>(path, "val")};
  }

  /// Ranks that share statistics.
  int group_of(const Case& c) const { return c.statistics == "all" ? ranks() : c.statistics == "grouped" && ranks() % 2 == 0 ? 2 : 1; }
  int ranks() const { return comm_->size(); }

  Config config_of(const Case& c, const Data& data) const {
    Config config;
    config.data.path = fs::path(data.train_set->files()[0]).parent_path().string();
    config.data.global_batch = c.batch, config.data.micro_batches = c.micro_batches, config.data.last_batch = c.last_batch, config.data.readers = 1;
    config.model.name = "resnet20", config.model.sync_bn = c.statistics != "local", config.model.sync_bn_group = c.statistics == "grouped" ? group_of(c) : 0;
    config.optimizer.learning_rate = rate, config.optimizer.momentum = momentum, config.optimizer.weight_decay = decay;
    config.schedule.kind = "constant";
    config.checkpoint.every_epochs = 0, config.checkpoint.keep_best = false;
    config.run.epochs = 2, config.run.log_every = 1, config.run.seed = 3;
    return config;
  }

  /// An epoch and up to two steps of the next.
  Outcome run(const RunPlan& plan, const Data& data) {
    const std::string folder = root_ + "/run";
    if (comm_->rank() == 0) fs::create_directories(folder + "/checkpoints");
    comm_->barrier();
    std::optional<Silence> silence;
    silence.emplace();
    {
      const RunSetting setting{.plan = plan, .folder = folder, .checkpoint = "", .weights = nullptr, .train = data.train_set.get(), .eval = data.eval_set.get(), .process_start = 0};
      Console console(comm_->rank() == 0 ? folder : "");
      Trainer trainer(device_, *comm_, setting, console, progress_, {.ranks = ranks()});
      EXPECT_EQ(trainer.run(), exit_done);
    }
    silence.reset();
    Outcome outcome;
    if (comm_->rank() != 0) return outcome;
    for (const Record& record : read_records(folder)) {
      if (const auto* train = std::get_if<TrainRecord>(&record)) outcome.steps.push_back(*train);
      if (const auto* eval = std::get_if<EvalRecord>(&record)) outcome.evals.push_back(*eval);
    }
    outcome.state = read_checkpoint(folder + "/checkpoints/" + checkpoint_name(plan.total_steps), layout(), plan.config.model, true, {"momentum_buffer"});
    fs::remove_all(folder);
    return outcome;
  }

  const Parameters& layout() {
    if (layout_) return *layout_;
    Graph graph({1, small_size, small_size, 3});
    ModelConfig model;
    model.classes = classes;
    build_model(graph, model);
    return layout_.emplace(finish_order(graph), std::vector<BufferSpec>(graph.buffer_specs().begin(), graph.buffer_specs().end()), DType::f32);
  }

  /// Whether the outcome is the model's.
  bool agrees(const Case& c, const RunPlan& plan, const Data& data, const Outcome& outcome) {
    const std::int64_t per_epoch = c.last_batch == "drop" ? c.images / c.batch : (c.images + c.batch - 1) / c.batch, steps = per_epoch + std::min<std::int64_t>(per_epoch, 2);
    const int group = group_of(c);
    Float64Training truth(layout(), 3, static_cast<std::size_t>(ranks() / group), rate, momentum, decay);
    const Sampler sampler(plan.config.data, c.images, c.batch, 3);
    const auto records = std::ssize(outcome.steps);
    bool is_right = records == steps && outcome.state.progress.step == steps && outcome.evals.size() == 2;
    std::int64_t seen = 0;               // in this epoch
    std::size_t evals = 0;
    for (std::int64_t s = 0; is_right && s < steps; ++s) {
      const std::vector<std::int64_t> order = sampler.order(s / per_epoch);
      const std::int64_t first = s % per_epoch * c.batch, count = c.last_batch == "keep" ? std::min(c.batch, c.images - first) : c.batch;
      Batch global;
      for (std::int64_t i = 0; i < count; ++i) global.push_back(&data.train[static_cast<std::size_t>(order[static_cast<std::size_t>((first + i) % c.images)])]);
      std::vector<std::vector<Batch>> parts(static_cast<std::size_t>(c.micro_batches), std::vector<Batch>(static_cast<std::size_t>(ranks() / group)));
      for (std::int64_t m = 0; m < c.micro_batches; ++m)
        for (int r = 0; r < ranks(); ++r) {
          const Batch part = cut(cut(global, r, ranks()), m, c.micro_batches);
          Batch& of_group = parts[static_cast<std::size_t>(m)][static_cast<std::size_t>(r / group)];
          of_group.insert(of_group.end(), part.begin(), part.end());
        }
      const LossSums sums = truth.step(parts);
      seen = s % per_epoch == 0 ? count : seen + count;
      const double tolerance = tolerance_of(truth);
      const TrainRecord& record = outcome.steps[static_cast<std::size_t>(s)];
      is_right = sums.images == count && std::llround(record.images_per_second * record.step_seconds) == count && is_near(worst_.loss, record.loss, sums.loss / static_cast<double>(count), tolerance) &&
                 is_near(worst_.grad_norm, record.grad_norm, truth.grad_norm, 10 * tolerance) && is_share(record.top1, sums);
      if ((s + 1) % per_epoch == 0 || s + 1 == steps) {
        const EvalRecord& eval = outcome.evals[evals++];
        Batch all;
        for (const LabelledImage& image : data.eval) all.push_back(&image);
        const LossSums evaluated = truth.evaluate(all);
        is_right = is_right && eval.step == s + 1 && eval.images == c.images && is_near(worst_.eval_loss, eval.loss, evaluated.loss / static_cast<double>(c.images), tolerance) && is_share(eval.top1, evaluated);
      }
      if (!is_right) std::printf("tolerance %g, step %d: %g, wanted %g; gradient %g, wanted %g; top-1 %g of %d\n", tolerance, static_cast<int>(s), record.loss, sums.loss / static_cast<double>(count), record.grad_norm,
                                 truth.grad_norm, record.top1, static_cast<int>(count));
    }
    const TrainingState& state = outcome.state;
    if (!is_right) return false;
    const double weights = distance(truth.weights, state.master);
    double statistics = 0;
    for (std::size_t g = 0; g < truth.running.size(); ++g) {
      const auto begin = state.group_running.begin() + static_cast<std::ptrdiff_t>(g * truth.running[g].size());
      statistics = std::max(statistics, distance(truth.running[g], std::vector<float>(begin, begin + std::ssize(truth.running[g]))));
    }
    worst_.see(worst_.weights, weights), worst_.see(worst_.statistics, statistics);
    const std::int64_t of_epoch = steps % per_epoch == 0 ? 0 : seen;                  // counted by the device: an epoch that ended begins anew
    if (state.progress.since_epoch.images != of_epoch) std::printf("%d images in this epoch, wanted %d\n", static_cast<int>(state.progress.since_epoch.images), static_cast<int>(of_epoch));
    const double tolerance = tolerance_of(truth);
    worst_.see(worst_.tolerance, tolerance), tight_ += tolerance < 1e-4;
    return weights < tolerance && statistics < tolerance && state.progress.since_epoch.images == of_epoch;
  }

  /// Roundings of f32 over a hundred steps.  One image of 127 too many or too few is 0.008.
  static double tolerance_of(const Float64Training& truth) { return truth.is_on_edge ? 5e-3 : 1e-5; }
  bool is_near(double& worst, double found, double wanted, double tolerance) {
    const double error = std::abs(found - wanted) / std::max(std::abs(wanted), 1e-2);
    worst_.see(worst, error);
    return error < tolerance;
  }
  /// top-1 is that many of all images; where rounding may turn one, at least some number of them.
  static bool is_share(double top1, const LossSums& sums) {
    const double right = top1 * static_cast<double>(sums.images);
    return sums.is_top1_sure ? top1 == static_cast<double>(sums.top1) / static_cast<double>(sums.images) : std::abs(right - std::round(right)) < 1e-9;
  }

  /// Refused before any work, as what the user can mend.
  static bool is_refused(const Config& config, const Data& data, std::int64_t ranks) {
    try {
      plan_run(config, data.train_set->header(), data.train_set->size(), ranks);
      return false;
    } catch (const Error& error) {
      return error.code() == exit_bad_input;
    }
  }

  ScratchFolder folder_;
  std::unique_ptr<Communicator> comm_;
  std::string root_;
  Device device_;
  Progress progress_;
  std::optional<Parameters> layout_;
  Worst worst_;
  int tight_ = 0;                        // runs whose tolerance was below 1e-4
};

TEST_F(OddSizes, EveryRunIsThatOfAFloat64ModelOrRefused) {
  if (!is_host_build()) GTEST_SKIP() << "thousands of runs, each of which a GPU takes seconds to start";
  const Watchdog watchdog(progress_, 120, 120);           // a rank that waits for ever ends the test, by name
  int tried = 0, right = 0, refused = 0;
  for (const std::int64_t images : {1, 2, 7, 50, 64, 65, 127}) {
    const Data data = data_of(images);
    for (const std::int64_t batch : {1, 2, 5, 64})
      for (const char* last_batch : {"keep", "drop", "pad"})
        for (const std::int64_t micro_batches : {1, 2, 3})
          for (const char* statistics : {"local", "grouped", "all"}) {
            const Case c{images, batch, micro_batches, last_batch, statistics};
            SCOPED_TRACE(c.text());
            ++tried;
            Config config = config_of(c, data);
            if (batch < ranks() || (c.last_batch == "drop" && images < batch)) {
              const bool is_right = is_refused(config, data, ranks());
              EXPECT_TRUE(is_right) << "must be refused";
              right += is_right, ++refused;
              continue;
            }
            const std::int64_t per_epoch = Sampler(config.data, images, batch, 3).steps_per_epoch();
            config.run.max_steps = per_epoch + std::min<std::int64_t>(per_epoch, 2);
            const RunPlan plan = plan_run(config, data.train_set->header(), images, ranks());
            const Outcome outcome = run(plan, data);
            const bool is_right = comm_->rank() != 0 || agrees(c, plan, data, outcome);
            EXPECT_TRUE(is_right);
            right += is_right;
          }
  }
  EXPECT_EQ(right, tried);
  if (comm_->rank() != 0) return;
  std::printf("%s: %d tried, %d right (%d of them refused); largest relative errors: loss %.1e, gradient's norm %.1e, evaluated loss %.1e, weights %.1e, statistics %.1e; largest tolerance %.1e, below 1e-4 in %d runs\n",
              counted(ranks(), "rank").c_str(), tried, right, refused, worst_.loss, worst_.grad_norm, worst_.eval_loss, worst_.weights, worst_.statistics, worst_.tolerance, tight_);
}

}  // namespace
}  // namespace test
}  // namespace lockstep
