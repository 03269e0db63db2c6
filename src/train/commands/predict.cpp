// `lockstep predict INPUT.toml|RUN IMAGES...`: what a run's network says of image files or shards.  One process.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "base/formatted.hpp"
#include "base/in_order.hpp"
#include "images/image_files.hpp"
#include "layers/standing.hpp"
#include "storage/aside_file.hpp"
#include "train/chosen_checkpoint.hpp"
#include "train/commands/commands.hpp"
#include "train/predict/pictures.hpp"
#include "train/predict/prediction_writer.hpp"
#include "train/predict/predictor.hpp"
#include "train/run_folder.hpp"
#include "train/snapshot.hpp"

namespace lockstep {
namespace {

std::int64_t top_of(const Invocation& invocation) {
  const std::string text = invocation.option("top").empty() ? "5" : invocation.option("top");
  std::int64_t top = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), top);
  require(error == std::errc() && end == text.data() + text.size() && top >= 1, "--top ", text, ": must be a whole number from 1.");
  return top;
}

/// Standard output, or a file that has its name only when it is whole.
class Output {
 public:
  /// arguments: what is read, and must stay.
  Output(const std::string& path, const std::vector<std::string>& arguments) : path_(path) {
    if (path_.empty()) return;
    std::error_code unknown;
    require(!std::filesystem::is_directory(path_, unknown), "--output ", path_, ": is a folder. Name a file.");
    require(!is_image_name(path_), "--output ", path_, ": is an image by its name. Name a file for the list, such as list.csv.");
    for (const std::string& argument : arguments)
      require(!std::filesystem::equivalent(path_, argument, unknown), "--output ", path_, ": is one of the files to read, and would be overwritten. Name another.");
    stream_.open(file_.emplace(path_).aside(), std::ios::binary | std::ios::trunc);
    require(stream_.good(), "--output ", path_, ": cannot be written. Check the folder and its permissions.");
  }
  std::ostream& stream() { return file_ ? stream_ : std::cout; }
  void finish() {
    stream().flush();
    if (file_) stream_.close();
    require(stream().good(), file_ ? path_ : "standard output", " cannot be written: the disk may be full.");
    if (file_) file_->publish();
  }

 private:
  std::string path_;
  std::optional<AsideFile> file_;        // none: standard output
  std::ofstream stream_;
};

/// Classes of one image with their softmax, the most probable first; as many as `top`.
std::vector<std::pair<std::size_t, double>> best_of(std::span<const float> logits, std::size_t top) {
  std::vector<std::size_t> order(logits.size());
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
  const auto before = [&](std::size_t a, std::size_t b) { return stands_before(logits[a], static_cast<std::int64_t>(a), logits[b], static_cast<std::int64_t>(b)); };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top), order.end(), before);
  double sum = 0;
  for (const float z : logits) sum += std::exp(double{z} - logits[order[0]]);
  std::vector<std::pair<std::size_t, double>> best;
  for (std::size_t i = 0; i < top; ++i) best.push_back({order[i], std::exp(double{logits[order[i]]} - logits[order[0]]) / sum});
  return best;
}

struct Decoded {
  std::optional<DecodedImage> image;
  std::string reason;                    // why there is none
};

/// Gathers pictures into batches, and writes what the network says of each, in order.
class PredictionRun {
 public:
  PredictionRun(Pictures& pictures, Predictor& predictor, const std::vector<std::string>& classes, std::int64_t outputs, std::int64_t batch, std::int64_t top, PredictionWriter& writer, PredictionSummary& summary)
      : pictures_(pictures), predictor_(predictor), classes_(classes), outputs_(static_cast<std::size_t>(outputs)), batch_(static_cast<std::size_t>(batch)), top_(static_cast<std::size_t>(top)), writer_(writer), summary_(summary) {}

  void run(int threads) {
    const auto decode = [&](std::int64_t i) {
      try {
        return Decoded{pictures_.image(i), ""};
      } catch (const Error& error) {
        return Decoded{std::nullopt, error.what()};
      }
    };
    in_order(pictures_.size(), threads, decode, [&](std::int64_t i, Decoded decoded) { take(i, std::move(decoded)); });
    flush();
  }

 private:
  void take(std::int64_t i, Decoded decoded) {
    if (!decoded.image) {
      std::cerr << text_of("lockstep: not read: ", decoded.reason, "\n");
      summary_.unread.push_back({pictures_.name(i), decoded.reason});
      return;
    }
    images_.push_back(std::move(*decoded.image)), numbers_.push_back(i);
    if (images_.size() == batch_) flush();
  }

  void flush() {
    if (images_.empty()) return;
    const std::vector<float> logits = predictor_.logits(images_);
    for (std::size_t n = 0; n < images_.size(); ++n) write(numbers_[n], std::span(logits).subspan(n * outputs_, outputs_));
    images_.clear(), numbers_.clear();
  }

  void write(std::int64_t i, std::span<const float> logits) {
    const std::size_t fifth = std::min<std::size_t>(5, outputs_);
    const auto best = best_of(logits, std::max(top_, fifth));
    const std::int32_t label = pictures_.label(i);
    PredictionRow row{.file = pictures_.name(i), .label = label < 0 ? "" : class_name(static_cast<std::size_t>(label)), .guesses = {}};
    for (std::size_t k = 0; k < best.size(); ++k) {
      if (k < top_) row.guesses.push_back({class_name(best[k].first), best[k].second});
      if (std::cmp_equal(best[k].first, label)) summary_.top1 += k < 1, summary_.top5 += k < fifth;
    }
    summary_.images += 1, summary_.labelled += label >= 0;
    writer_.row(row);
  }
  std::string class_name(std::size_t k) const { return k < classes_.size() ? classes_[k] : text_of("output ", k); }

  Pictures& pictures_;
  Predictor& predictor_;
  const std::vector<std::string>& classes_;
  std::size_t outputs_, batch_, top_;
  PredictionWriter& writer_;
  PredictionSummary& summary_;
  std::vector<DecodedImage> images_;
  std::vector<std::int64_t> numbers_;
};

void say(const PredictionSummary& s) {
  std::cerr << "lockstep: checkpoint " << s.checkpoint << ", " << counted(s.images, "image");
  if (!s.unread.empty()) std::cerr << ", " << s.unread.size() << " not read";
  std::cerr << "\n";
  if (s.labelled == 0) return;
  const auto percent = [&](std::int64_t right) { return 100 * static_cast<double>(right) / static_cast<double>(s.labelled); };
  std::cerr << "lockstep: accuracy over " << counted(s.labelled, "image") << " of known class: " << formatted("top-1 %.2f %%  top-5 %.2f %%", percent(s.top1), percent(s.top5)) << "\n";
}

}  // namespace

int run_predict(const Invocation& invocation, Communicator& comm, Device& device) {
  require(comm.size() == 1, "predict needs one process. Start it without mpirun, or with one rank.");
  require(invocation.arguments.size() >= 2, "predict needs images after ", invocation.arguments[0], ": files, folders or shards.");
  const std::int64_t asked = top_of(invocation);
  const std::string format = invocation.option("format").empty() ? "text" : invocation.option("format");
  std::error_code unknown;
  require(!is_image_name(invocation.arguments[0]) || std::filesystem::is_directory(invocation.arguments[0], unknown), invocation.arguments[0], ": is an image by its name. The run's folder, or its INPUT.toml, comes first, then the images.");
  auto [config, folder] = find_run(invocation.arguments[0], invocation.overrides);
  ChosenCheckpoint chosen(config, folder);
  const CheckpointHeader header = chosen.read(read_checkpoint_header);
  const std::int64_t asked_classes = config.model.classes;
  take_from_run(config, header);

  const std::vector<std::string> named(invocation.arguments.begin() + 1, invocation.arguments.end());
  const std::unique_ptr<Pictures> pictures = open_pictures(named, config.data.eval_split, chosen.path(), header, asked_classes);
  const std::vector<std::string> classes = header.class_names.empty() ? pictures->header().classes : header.class_names;
  if (!pictures->note().empty()) std::cerr << "lockstep: " << pictures->note() << "\n";
  const RunPlan plan = plan_evaluation(config, pictures->header(), pictures->size(), 1);
  const std::int64_t outputs = plan.config.model.classes, top = std::min(asked, outputs);
  Output output(invocation.option("output"), invocation.arguments);
  const std::unique_ptr<PredictionWriter> writer = make_prediction_writer(format, output.stream(), top);

  limit_memory(device, config.device, comm.local_size());
  Network network(device, comm, plan.config, plan.images, {.advice = [](std::int64_t images) { return text_of("At most ", images, " at once fit: set data.eval_batch."); }});
  network.allocate();
  TrainingState state = chosen.read([&](const std::string& path) { return read_checkpoint(path, network.parameters(), plan.config.model, false, {}); });
  restore_weights(device, comm, network, state);
  PredictionSummary summary{.checkpoint = chosen.path(), .model = plan.config.model.name};
  Predictor predictor(device, network, plan, pictures->header());
  PredictionRun(*pictures, predictor, classes, outputs, plan.eval_batch, top, *writer, summary).run(static_cast<int>(config.data.readers));
  require(summary.images > 0, "none of ", counted(std::ssize(summary.unread), "image"), " could be read: ", summary.unread.empty() ? "" : summary.unread[0].reason, ". Name JPEG, PNG, WebP, TIFF, BMP or PNM files.");
  writer->finish(summary);
  output.finish();
  say(summary);
  return exit_done;
}

}  // namespace lockstep
