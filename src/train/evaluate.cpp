#include "train/evaluate.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "train/run_folder.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t most_confused_classes = 1000;     // above, the matrix would be larger than anybody reads

double fraction(std::int64_t part, std::int64_t whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0; }

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
  predictions_ = device_.allocate(static_cast<std::size_t>(images) * sizeof(std::int32_t));
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
      device_.copy(static_cast<std::int32_t*>(predictions_.data()) + ids.size(), executor.predictions(), static_cast<std::size_t>(slot.count) * sizeof(std::int32_t));
      ids.insert(ids.end(), slot.ids.begin(), slot.ids.end());
    }
    flight_.limit(2);
    progress_.tick();
  }

  const std::int64_t classes = plan_.config.model.classes;
  const bool has_matrix = classes <= most_confused_classes;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(2 * classes + (has_matrix ? classes * classes : 0)), 0);
  std::vector<std::int32_t> predictions(ids.size());
  device_.copy_to_host(predictions.data(), predictions_.data(), predictions.size() * sizeof(std::int32_t));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t label = dataset_.records()[static_cast<std::size_t>(ids[i])].label, predicted = predictions[i];
    counts[static_cast<std::size_t>(label)] += 1;
    counts[static_cast<std::size_t>(classes + label)] += label == predicted;
    if (has_matrix) counts[static_cast<std::size_t>(2 * classes + label * classes + predicted)] += 1;
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
  if (e.images != dataset_.size()) fail_with(exit_internal, "evaluation counted ", e.images, " of ", dataset_.size(), " images");
  return e;
}

void write_evaluation(const std::string& folder, const Evaluation& e, const std::vector<std::string>& class_names, std::int64_t step, const std::string& checkpoint) {
  nlohmann::ordered_json json = {{"step", step}, {"checkpoint", checkpoint}, {"images", e.images}, {"loss", e.loss}, {"top1", e.top1}, {"top5", e.top5}};
  for (std::size_t i = 0; i < class_names.size(); ++i)
    json["classes"].push_back({{"name", class_names[i]}, {"images", e.class_images[i]}, {"top1", fraction(e.class_correct[i], e.class_images[i])}});
  const std::size_t classes = e.class_images.size();
  for (std::size_t i = 0; i < class_names.size() && !e.confusion.empty(); ++i)
    json["confusion"].push_back(std::vector<std::int64_t>(e.confusion.begin() + static_cast<std::ptrdiff_t>(i * classes), e.confusion.begin() + static_cast<std::ptrdiff_t>((i + 1) * classes)));
  write_aside((std::filesystem::path(folder) / "evaluation.json").string(), json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::string class_table(const Evaluation& e, const std::vector<std::string>& class_names, std::size_t lines) {
  std::vector<std::size_t> order(class_names.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto accuracy = [&](std::size_t i) { return fraction(e.class_correct[i], e.class_images[i]); };
  std::erase_if(order, [&](std::size_t i) { return e.class_images[i] == 0; });
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return accuracy(a) < accuracy(b); });
  std::string table = "  top-1    images  class\n";
  for (std::size_t i = 0; i < std::min(lines, order.size()); ++i) {
    char line[64];
    std::snprintf(line, sizeof line, "%6.2f %% %8lld  ", 100 * accuracy(order[i]), static_cast<long long>(e.class_images[order[i]]));
    table += line + class_names[order[i]] + "\n";
  }
  if (order.size() > lines) table += text_of("  ... and ", order.size() - lines, " classes that did better (evaluation.json has all)\n");
  return table;
}

}  // namespace lockstep
