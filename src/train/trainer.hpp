// trainer: builds the run, holds the recordings, the loop and the step: the only conductor.
// In: a resolved plan, the data sets, where to go on.  Out: the exit code; checkpoints, metrics and log in the run's folder.
#pragma once
#include <map>
#include <compare>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"
#include "data/loader.hpp"
#include "optim/optimizer.hpp"
#include "storage/shards.hpp"
#include "train/checkpoint_folder.hpp"
#include "train/data_wait.hpp"
#include "train/evaluate.hpp"
#include "train/metrics.hpp"
#include "train/network.hpp"
#include "train/run_plan.hpp"
#include "train/step_inputs.hpp"
#include "train/stop_vote.hpp"
#include "train/weights.hpp"

namespace lockstep {

/// What a run trains on and where it writes.
struct RunSetting {
  RunPlan plan;
  std::string folder;
  std::string checkpoint;                // to go on from; empty: from the start
  const Weights* weights = nullptr;      // on rank 0, to start from, read by the constructor alone; null: drawn
  const Dataset* train = nullptr;
  const Dataset* eval = nullptr;         // null: the data set has no such split
  double process_start = 0;              // by stopwatch_seconds()
};

class Trainer {
 public:
  /// start: what sinks are told first; its step is filled in.
  Trainer(Device& device, Communicator& comm, const RunSetting& setting, Console& console, Progress& progress, StartRecord start);
  ~Trainer();
  /// To the end, or until a signal stops it.  Collective.  The exit code; throws on failure.
  int run();

 private:
  struct Times {                         // by stopwatch_seconds(); of rates
    double run_start = 0, record_start = 0, wait_at_record = 0, checkpoint = 0;
    double phases_start = 0, wait_at_phases = 0;
    PhaseRecord phases;                  // since the last record of phases
    std::int64_t images = 0, images_at_record = 0, step_at_record = 0;
  };

  /// What a recording is made for.  By the counts of all ranks, not only this one's: every rank then makes its recordings at the same time,
  /// and their sums over ranks meet.
  struct RecordingKey {
    std::vector<std::int64_t> counts;    // images of this micro-batch, by rank
    bool is_first = false, is_last = false;
    const Cut* cuts = nullptr;           // of the slot; the pixels go with them, or are the cache
    auto operator<=>(const RecordingKey&) const = default;
  };
  struct NotTraining;

  void restore();
  void start_from_weights();
  void step();
  void rehearse();
  RecordingKey key_of(const Slot& slot) const;
  void publish(const Slot& slot, bool is_rehearsal);
  void enqueue(const Slot& slot);
  Wish wish() const;
  bool is_evaluation_due() const;
  bool is_checkpoint_due() const;
  bool evaluate();                       // false: stopped meanwhile
  void save();
  void fold_metrics();
  void record(bool is_epoch_end);
  void end_epoch();
  void record_phases();
  void report();
  template <class Write> void try_to_write(const std::string& what, Write&& write);
  void require_converging();
  int finish(bool is_stopped);
  void fill_cache();
  void say_memory();
  int finish_profile();
  bool is_profiled() const { return plan_.config.run.profile_from > 0; }
  std::int64_t last_profiled() const { return plan_.config.run.profile_from + profiled_steps - 1; }
  template <class Call> void each_sink(Call&& call);

  Device& device_;
  Communicator& comm_;
  const RunSetting& setting_;
  const RunPlan& plan_;
  Console& console_;
  Progress& progress_;                   // for the watchdog
  Network network_;
  std::vector<float> rates_;
  Optimizer optimizer_;
  Sampler sampler_;
  Augment augment_;
  StepInputsFeed inputs_;
  Flight flight_;
  StopVote vote_;
  int group_ = 1;                        // ranks that share batch norm statistics
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<ImageCache> cache_;    // null: images are read batch by batch
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<CheckpointWriter> writer_;             // rank 0
  std::vector<std::unique_ptr<Sink>> sinks_;             // rank 0, beside the console
  std::map<RecordingKey, std::unique_ptr<Replay>> recordings_;   // empty: steps are enqueued one by one
  RunProgress run_;
  std::int64_t first_step_ = 0;          // where this process went on
  std::int64_t saved_step_ = -1;
  std::set<std::string> failed_;         // files beside the run's state whose failing was said
  bool has_improved_ = false;            // the last evaluation was the best: it gets a checkpoint
  Times times_;
  DataWatch data_watch_;
};

}  // namespace lockstep
