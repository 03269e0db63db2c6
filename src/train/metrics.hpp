// metrics: what a run says about itself.  Records go to sinks: the console and log, metrics.jsonl, TensorBoard.
// Rank 0 only.  Fractions are from 0 to 1, losses are means over images.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "train/records.hpp"

namespace lockstep {

/// A place that records go to.  One file each.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void start(const StartRecord& r) = 0;
  virtual void train(const TrainRecord& r) = 0;
  virtual void eval(const EvalRecord& r) = 0;
  virtual void phases(const PhaseRecord& r) = 0;
  /// The run's end.  Error where something could not be written, up to now.
  virtual void finish() {}
};
using Warn = std::function<void(const std::string&)>;   // told once when a file begins to refuse records, which are then kept and tried again

/// <folder>/metrics.jsonl: one object a line, each by one append.  Records after `step` (of a run that was killed later) are taken out first,
/// and evaluations of training after evaluated_step, and half lines.
std::unique_ptr<Sink> make_json_sink(const std::string& folder, std::int64_t step, std::int64_t evaluated_step, Warn warn);
/// <folder>/events.out.tfevents.*, one a start.  Events after `step` and half ones are cut off those of earlier starts; a resumed run marks where it goes on.
std::unique_ptr<Sink> make_tensorboard_sink(const std::string& folder, std::int64_t step, Warn warn);
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
  void phases(const PhaseRecord&) override {}

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Seconds since 1970.
double wall_seconds();
/// "1:02:03" or "2:03".
std::string duration(double seconds);

}  // namespace lockstep
