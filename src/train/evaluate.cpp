#include "train/evaluate.hpp"

#include <algorithm>
#include <set>

namespace lockstep {
namespace {

constexpr std::int64_t most_confused_classes = 1000;     // above, the matrix would be larger than anybody reads

}  // namespace

Evaluator::Evaluator(Device& device, Communicator& comm, Network& network, const Dataset& dataset, const RunPlan& plan, Progress& progress)
    : device_(device), comm_(comm), network_(network), dataset_(dataset), plan_(plan), progress_(progress),
      augment_(plan.config.augment, false, static_cast<std::uint64_t>(plan.config.run.seed), dataset.header().height, dataset.header().width, plan.config.data.mean,
               plan.config.data.std),
      feed_(device), flight_(device) {
  require(static_cast<std::int64_t>(dataset.header().classes.size()) <= plan.config.model.classes, "split \"", dataset.header().split, "\" has ",
          dataset.header().classes.size(), " classes and the network ", plan.config.model.classes, " outputs. Raise model.classes.");
}

void Evaluator::prepare() {
  if (loader_) return;
  const WorkSource pass = evaluation_work(dataset_.size(), plan_.eval_batch, comm_.rank(), comm_.size());
  std::set<std::int64_t> counts;
  std::int64_t images = 0;
  batches_ = 0;
  for (Work work; pass(batches_, work); ++batches_) counts.insert(work.positions.size()), images += work.positions.size();
  counts.erase(0);
  predictions_ = device_.allocate(static_cast<std::size_t>(images) * sizeof(Prediction));
  if (!cache_) cache_ = cache_images(device_, dataset_, plan_.config.data, comm_.local_size(), [this] { progress_.tick(); });
  loader_ = std::make_unique<Loader>(device_, dataset_, augment_, [pass, batches = batches_](std::int64_t index, Work& work) { return pass(index % batches, work); },
                                     plan_.config.data.readers, plan_.config.data.slots, plan_.eval_batch, [this] { progress_.tick(); }, cache_.get());
  if (!plan_.config.device.record) return;
  for (Slot slot : loader_->blanks())
    for (const std::int64_t count : counts) {
      slot.count = count;
      feed_.publish({.local_count = static_cast<std::int32_t>(count)}, network_.executor().step_state());
      recordings_[{count, slot.cuts}] = device_.record([this, slot] { enqueue(slot); }, true);
      progress_.tick();
    }
  device_.zero(network_.executor().metrics(), sizeof(MetricSums));
}

void Evaluator::enqueue(const Slot& slot) {
  Executor& executor = network_.executor();
  augment_.enqueue(device_, slot.pixels, slot.cuts, slot.count, executor.input(), executor.labels(), {.channels = executor.input().shape.c});
  executor.enqueue_evaluation(slot.count);
}

std::optional<Evaluation> Evaluator::run(const std::function<bool()>& is_stopping) {
  prepare();
  Executor& executor = network_.executor();
  device_.zero(executor.metrics(), sizeof(MetricSums));
  std::vector<std::int64_t> ids;         // of predictions_
  for (std::int64_t batch = 0; batch < batches_; ++batch) {
    const Slot& slot = *loader_->next();
    if (is_stopping()) {                 // the readers stand within a pass: another run would begin anew
      device_.wait();
      recordings_.clear();
      loader_.reset();
      return std::nullopt;
    }
    if (slot.count > 0) {
      feed_.publish({.local_count = static_cast<std::int32_t>(slot.count)}, executor.step_state());
      recordings_.empty() ? enqueue(slot) : recordings_.at({slot.count, slot.cuts})->run();
      device_.copy(static_cast<Prediction*>(predictions_.data()) + ids.size(), executor.predictions(), static_cast<std::size_t>(slot.count) * sizeof(Prediction));
      ids.insert(ids.end(), slot.ids.begin(), slot.ids.end());
    }
    flight_.limit(2);
    progress_.tick();
  }

  const std::int64_t classes = plan_.config.model.classes;
  const bool has_matrix = classes <= most_confused_classes;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(2 * classes + (has_matrix ? classes * classes : 0)), 0);
  std::vector<Prediction> predictions(ids.size());
  device_.copy_to_host(predictions.data(), predictions_.data(), predictions.size() * sizeof(Prediction));
  std::vector<Mistake> mistakes;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Prediction& p = predictions[i];
    const std::int64_t label = dataset_.records()[static_cast<std::size_t>(ids[i])].label, predicted = p.label;
    counts[static_cast<std::size_t>(label)] += 1;
    counts[static_cast<std::size_t>(classes + label)] += label == predicted;
    if (has_matrix) counts[static_cast<std::size_t>(2 * classes + label * classes + predicted)] += 1;
    if (label != predicted) mistakes.push_back({.image = ids[i], .label = static_cast<std::int32_t>(label), .predicted = p.label, .probability = p.probability, .loss = p.loss});
  }
  MetricSums local;
  device_.copy_to_host(&local, executor.metrics(), sizeof local);
  device_.zero(executor.metrics(), sizeof(MetricSums));
  comm_.sum(counts);
  std::int64_t totals[] = {local.images, local.top1, local.top5};
  comm_.sum(std::span<std::int64_t>(totals));

  Evaluation e;
  e.images = totals[0];
  e.loss = comm_.sum(local.loss) / static_cast<double>(std::max<std::int64_t>(e.images, 1));
  e.top1 = fraction(totals[1], e.images);
  e.top5 = fraction(totals[2], e.images);
  e.class_images.assign(counts.begin(), counts.begin() + classes);
  e.class_correct.assign(counts.begin() + classes, counts.begin() + 2 * classes);
  e.confusion.assign(counts.begin() + 2 * classes, counts.end());
  e.mistakes = worst_of_all(comm_, std::move(mistakes));
  if (e.images != dataset_.size()) fail_with(exit_internal, "evaluation counted ", e.images, " of ", dataset_.size(), " images");
  return e;
}

}  // namespace lockstep
