// metrics: what a run says about itself.  Records go to sinks: the console and log, metrics.jsonl, TensorBoard.
// Rank 0 only.  Fractions are from 0 to 1, losses are means over images.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

struct StartRecord {
  std::string run, versions, git_hash, config, job = {};  // job: "" outside of a batch system
  std::vector<std::string> hosts;
  std::int64_t ranks = 1, step = 0;                     // step: where it goes on
  std::string resumed_from;
};

struct TrainRecord {
  std::int64_t step = 0;
  double epoch = 0;                                     // passes over the training split, with its fraction
  double loss = 0, top1 = 0, top5 = 0;                  // over all images of all ranks since the previous record
  double learning_rate = 0, images_per_second = 0, images_per_second_average = 0, step_seconds = 0;
  double data_wait = 0;                                 // fraction of the time since the previous record
  double loss_scale = 1, grad_norm = 0;
  std::int64_t skipped = 0, memory_bytes = 0;
  double seconds_left = 0;                              // shown, not recorded
  double epochs = 0;                                    // of the whole run; shown
};

struct EvalRecord {
  std::int64_t step = 0;
  double epoch = 0, loss = 0, top1 = 0, top5 = 0;
  std::int64_t images = 0;
  std::string checkpoint = {}, split = {};              // of `lockstep eval`; empty during training
};

/// A place that records go to.  One file each.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void start(const StartRecord& r) = 0;
  virtual void train(const TrainRecord& r) = 0;
  virtual void eval(const EvalRecord& r) = 0;
};

/// <folder>/metrics.jsonl: one object a line, each by one append.  Records after `step` (of a run that was killed later) are taken out first,
/// and evaluations of training after evaluated_step.
std::unique_ptr<Sink> make_json_sink(const std::string& folder, std::int64_t step, std::int64_t evaluated_step);
/// <folder>/events.out.tfevents.*; a resumed run marks where it goes on.
std::unique_ptr<Sink> make_tensorboard_sink(const std::string& folder, std::int64_t step);
/// Appends one eval record by one write; takes no lock.
void append_eval_record(const std::string& folder, const EvalRecord& record);

/// Standard output and <folder>/log.  On a terminal the progress line is overwritten; elsewhere every line stays.
class Console final : public Sink {
 public:
  explicit Console(const std::string& folder);          // empty: no log file
  ~Console() override;
  void say(const std::string& line);                    // thread-safe
  void start(const StartRecord& r) override;
  void train(const TrainRecord& r) override;
  void eval(const EvalRecord& r) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Seconds since 1970.
double wall_seconds();
/// "1:02:03" or "2:03".
std::string duration(double seconds);

}  // namespace lockstep
