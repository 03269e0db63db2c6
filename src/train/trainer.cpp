#include "train/trainer.hpp"

#include <algorithm>
#include <cmath>

#include "base/build_info.hpp"
#include "train/preemption.hpp"
#include "train/report/report.hpp"
#include "train/snapshot.hpp"

namespace lockstep {
namespace {

MetricSums operator+(const MetricSums& a, const MetricSums& b) { return {a.loss + b.loss, a.images + b.images, a.top1 + b.top1, a.top5 + b.top5}; }
double mean(double sum, std::int64_t images) { return images > 0 ? sum / static_cast<double>(images) : 0; }

CheckpointHeader checkpoint_header(const RunPlan& plan, const ShardHeader& shards, int ranks) {
  const Config& c = plan.config;
  return {.model = c.model.name, .classes = c.model.classes, .class_names = shards.classes, .global_batch = c.data.global_batch, .seed = c.run.seed, .ranks = ranks,
          .micro_batches = c.data.micro_batches, .steps_per_epoch = plan.steps_per_epoch, .config = to_toml(c), .fit = shards.fit, .rotate = shards.rotate, .size = shards.size,
          .versions = text_of("lockstep ", build_info().version, " ", build_info().git_hash, ", ", build_info().libraries)};
}

}  // namespace

template <class Call>
void Trainer::each_sink(Call&& call) {
  if (comm_.rank() != 0) return;
  call(static_cast<Sink&>(console_));
  for (const auto& sink : sinks_) call(*sink);
}

/// What passes while it lives is left out of rates, and is that phase's.
struct Trainer::NotTraining {
  NotTraining(Trainer& trainer, double PhaseRecord::* seconds_of_phase)
      : times(trainer.times_), watch(trainer.data_watch_), phase(trainer.times_.phases.*seconds_of_phase), start(stopwatch_seconds()) {}
  ~NotTraining() {
    const double passed = stopwatch_seconds() - start;
    times.run_start += passed, times.record_start += passed, phase += passed;
    watch.leave_out(passed);
  }
  Times& times;
  DataWatch& watch;
  double& phase;
  double start;
};

Trainer::Trainer(Device& device, Communicator& comm, const RunSetting& setting, Console& console, Progress& progress, StartRecord start)
    : device_(device), comm_(comm), setting_(setting), plan_(setting.plan), console_(console), progress_(progress),
      network_(device, comm, setting.plan.config, setting.plan.images, beside_training(device, setting.plan, *setting.train, setting.eval)), rates_(rate_table(setting.plan.config.schedule, schedule_plan(setting.plan))),
      optimizer_((network_.allocate(), device), setting.plan.config.optimizer, network_.parameters(), rates_, setting.plan.config.precision == "fp16"),
      sampler_(plan_.config.data, plan_.train_images, plan_.config.data.global_batch, static_cast<std::uint64_t>(plan_.config.run.seed)),
      augment_(plan_.config.augment, true, static_cast<std::uint64_t>(plan_.config.run.seed), setting.train->header().height, setting.train->header().width,
               plan_.config.data.mean, plan_.config.data.std),
      inputs_(device), flight_(device), vote_(comm, device.is_host() ? 1 : 2), group_(ranks_per_statistics(plan_.config.model, comm.size())) {
  if (setting.eval) evaluator_ = std::make_unique<Evaluator>(device, comm, network_, *setting.eval, plan_, progress);
  restore();
  first_step_ = run_.step;
  saved_step_ = setting.checkpoint.empty() ? -1 : run_.step;
  if (comm_.rank() == 0) {
    const std::string folder = setting.folder;
    writer_ = std::make_unique<CheckpointWriter>(folder + "/checkpoints", plan_.config.checkpoint, plan_.steps_per_epoch,
                                                 [this](const std::string& line) { console_.say(line); }, [this] { progress_.tick(); });
    const auto warn = [this](const std::string& line) { console_.say(line); };
    sinks_.push_back(make_json_sink(folder, run_.step, run_.evaluated_step, warn));
    sinks_.push_back(make_tensorboard_sink(folder, run_.step, warn));
  }
  start.step = run_.step;
  each_sink([&](Sink& sink) { sink.start(start); });
}
Trainer::~Trainer() = default;

void Trainer::restore() {
  Parameters& parameters = network_.parameters();
  parameters.initialize(device_, static_cast<std::uint64_t>(plan_.config.run.seed));
  optimizer_.start(device_, network_.executor().step_state());
  if (setting_.checkpoint.empty()) {
    if (!plan_.config.model.weights.empty()) start_from_weights();
    return;
  }
  std::vector<std::string> names;
  for (const Optimizer::Moment& moment : optimizer_.moments()) names.push_back(moment.name);
  TrainingState state;
  if (comm_.rank() == 0) state = read_checkpoint(setting_.checkpoint, parameters, plan_.config.model, true, names);
  restore_snapshot(device_, comm_, network_, optimizer_, state, group_);
  run_ = state.progress;
}

void Trainer::start_from_weights() {
  TrainingState state;
  if (comm_.rank() == 0) {
    state = weights_of(device_, network_);
    const TakenWeights taken = take_weights(*setting_.weights, plan_.config.model, setting_.train->header().classes, network_.parameters(), state);
    for (const std::string& line : taken.table) console_.say(line);
  }
  restore_weights(device_, comm_, network_, state);
}

int Trainer::run() {
  require(!is_profiled() || run_.step < plan_.config.run.profile_from, "run.profile_from = ", plan_.config.run.profile_from, ", but this run goes on after step ", run_.step,
          ". Set it to a later step, or run.name to a new run.");
  if (run_.step >= plan_.total_steps && !is_evaluation_due()) {
    if (comm_.rank() == 0) console_.say(text_of("run ", plan_.config.run.name, " is finished: ", run_.step, " steps. Raise run.epochs to go on, or choose another run.name."));
    return exit_done;
  }
  fill_cache();
  loader_ = std::make_unique<Loader>(device_, *setting_.train, augment_, training_work(sampler_, run_.step, comm_.rank(), comm_.size(), plan_.config.data.micro_batches),
                                     plan_.config.data.readers, plan_.config.data.slots, plan_.largest_part, [this] { progress_.tick(); }, cache_.get());
  progress_.phase = Phase::warm_up;
  rehearse();
  say_memory();
  times_.run_start = times_.record_start = times_.checkpoint = times_.phases_start = stopwatch_seconds();
  data_watch_.begin();
  times_.phases.start = times_.run_start - setting_.process_start;
  times_.step_at_record = run_.step;
  bool is_first = true;
  std::optional<ProfilerCapture> capture;
  for (;;) {
    if (is_profiled() && run_.step == last_profiled()) return finish_profile();
    // Between steps, and only here: preempted? evaluate? checkpoint?
    const Wish wanted = vote_.ask(wish());
    if (wanted == Wish::stop) return finish(true);
    if (is_evaluation_due()) {
      if (!evaluate()) return finish(true);
      if (run_.step < plan_.total_steps) record_phases(), report();
    }
    if (wanted == Wish::save || is_checkpoint_due()) save();
    if (run_.step >= plan_.total_steps) return finish(false);
    progress_.phase = is_first ? Phase::warm_up : Phase::training;
    if (run_.step + 1 == plan_.config.run.profile_from) capture.emplace(device_);
    step();
    if (run_.step == last_profiled()) capture.reset();
    if (is_first && comm_.rank() == 0)
      console_.say(text_of("first step ", std::round(10 * (stopwatch_seconds() - setting_.process_start)) / 10, " s after start"));
    is_first = false;
    const bool is_epoch_end = run_.step % plan_.steps_per_epoch == 0;
    if (run_.step % plan_.config.run.log_every == 0 || is_epoch_end || run_.step == plan_.total_steps) record(is_epoch_end);
    if (is_epoch_end) end_epoch();
  }
}

void Trainer::fill_cache() {
  cache_ = cache_images(device_, *setting_.train, plan_.config.data, comm_.local_size(), [this] { progress_.tick(); });
  if (cache_ && comm_.rank() == 0)
    console_.say(text_of("the training images stay in ", cache_->is_on_device() && !device_.is_host() ? "the GPU's" : "each rank's", " memory: ", cache_->bytes() >> 20, " MiB"));
}

/// What CUDA and its libraries have taken beside what was planned; a CPU build has nothing beside it.
void Trainer::say_memory() {
  if (device_.is_host() || comm_.rank() != 0) return;
  const std::size_t planned = device_.allocated_bytes(), taken = device_.memory_bytes() - device_.free_bytes();
  console_.say(text_of("memory: ", planned >> 20, " MiB as planned", network_.memory().repeats ? ", normalized activations computed again in the backward pass (graph.recompute)" : "",
                       device_.limit_bytes() == 0 ? text_of("; beside it the GPU holds ", (taken - std::min(taken, planned)) >> 20, " MiB of CUDA's context, recordings",
                                                            comm_.size() > 1 ? ", NCCL" : "", " and other processes") : ""));
}

/// One step: one global batch in, one update out.  Collective.
void Trainer::step() {
  const ProfileRange range("train.step");
  for (std::int64_t part = 0; part < plan_.config.data.micro_batches; ++part) {
    const Slot& slot = *loader_->next();
    publish(slot, false);
    times_.images += part == 0 ? slot.global_count : 0;
    recordings_.empty() ? enqueue(slot) : recordings_.at(key_of(slot))->run();
  }
  flight_.limit(2);
  run_.step += 1;
  run_.epoch = run_.step / plan_.steps_per_epoch;
  progress_.step = run_.step;
  progress_.tick();
}

/// Makes every recording that the run needs, of batches of blank images that change nothing.  Collective.
void Trainer::rehearse() {
  if (evaluator_) evaluator_->prepare();
  const std::vector<Slot> blanks = loader_->blanks();
  if (blanks.empty() || !plan_.config.device.record || is_profiled() || !network_.is_recordable()) return;
  const std::int64_t parts = plan_.config.data.micro_batches;
  for (const std::int64_t global_count : {sampler_.global_count(0), sampler_.global_count(sampler_.steps_per_epoch() - 1)})
    for (std::int64_t part = 0; part < parts; ++part)
      for (Slot slot : blanks) {
        const Part of_rank = part_of(global_count, comm_.rank(), comm_.size());
        slot.global_count = global_count, slot.part = part, slot.count = part_of(of_rank.size(), part, parts).size();
        std::unique_ptr<Replay>& recording = recordings_[key_of(slot)];
        if (recording) continue;
        publish(slot, true);
        recording = device_.record([this, slot] { enqueue(slot); }, true);
        progress_.tick();
      }
  device_.zero(network_.executor().metrics(), sizeof(MetricSums));
}

Trainer::RecordingKey Trainer::key_of(const Slot& slot) const {
  RecordingKey key{.counts = {}, .is_first = slot.part == 0, .is_last = slot.part + 1 == plan_.config.data.micro_batches, .cuts = slot.cuts};
  for (int rank = 0; rank < comm_.size(); ++rank)
    key.counts.push_back(part_of(part_of(slot.global_count, rank, comm_.size()).size(), slot.part, plan_.config.data.micro_batches).size());
  return key;
}

void Trainer::publish(const Slot& slot, bool is_rehearsal) {
  inputs_.publish({.seed = plan_.config.run.seed, .step = run_.step, .part = slot.part, .first_sample = slot.first_position,
                   .inverse_global_count = 1.0f / static_cast<float>(slot.global_count), .plateau_factor = run_.plateau.factor,
                   .local_count = static_cast<std::int32_t>(slot.count), .is_rehearsal = is_rehearsal}, network_.executor().step_state());
}

/// Augment, forward, backward, all-reduce and, after the last micro-batch, the update.
void Trainer::enqueue(const Slot& slot) {
  Executor& executor = network_.executor();
  const bool is_last = slot.part + 1 == plan_.config.data.micro_batches;
  if (slot.count > 0) {
    const ProfileRange range(is_profiled() ? "augment" : nullptr);
    augment_.enqueue(device_, slot.pixels, slot.cuts, slot.count, executor.input(), executor.labels(), {.channels = executor.input().shape.c});
  }
  executor.enqueue_training(slot.count, slot.part == 0, is_last, nullptr, is_profiled());
  if (!is_last) return;
  const ProfileRange range(is_profiled() ? "optimizer" : nullptr);
  optimizer_.enqueue_update(device_, executor.step_state(), network_.parameters().nonfinite_losses());
}

Wish Trainer::wish() const {
  if (stop_requested() != 0) return Wish::stop;
  const double minutes = plan_.config.checkpoint.every_minutes;
  return comm_.rank() == 0 && minutes > 0 && stopwatch_seconds() - times_.checkpoint >= 60 * minutes ? Wish::save : Wish::go_on;
}

bool Trainer::is_evaluation_due() const {
  if (!evaluator_ || run_.step == 0 || run_.evaluated_step == run_.step) return false;
  if (run_.step >= plan_.total_steps) return true;
  const std::int64_t every = plan_.config.run.evaluate_every_epochs * plan_.steps_per_epoch;
  return every > 0 && run_.step % every == 0;
}

bool Trainer::is_checkpoint_due() const {
  if (run_.step == first_step_ && !has_improved_ && run_.step < plan_.total_steps) return false;
  if (run_.step == saved_step_) return false;
  if (has_improved_ || run_.step >= plan_.total_steps) return true;
  const CheckpointConfig& c = plan_.config.checkpoint;
  if (c.every_steps > 0 && run_.step % c.every_steps == 0) return true;
  const auto epoch_steps = static_cast<std::int64_t>(std::llround(c.every_epochs * static_cast<double>(plan_.steps_per_epoch)));
  return epoch_steps > 0 && run_.step % epoch_steps == 0;
}

bool Trainer::evaluate() {
  const NotTraining pause(*this, &PhaseRecord::evaluation);
  progress_.phase = Phase::evaluation;
  fold_metrics();                        // training's sums lie where evaluation's will
  std::optional<Evaluation> result;
  {
    const RankZeroStatistics of_the_run(device_, comm_, network_);
    result = evaluator_->run([this] { return vote_.ask(wish()) == Wish::stop; });
  }
  if (!result) return false;
  run_.evaluated_step = run_.step;
  has_improved_ = plan_.config.checkpoint.keep_best && result->top1 > run_.best_top1;
  if (result->top1 > run_.best_top1) run_.best_top1 = result->top1, run_.best_step = run_.step;
  const double epoch = static_cast<double>(run_.step) / static_cast<double>(plan_.steps_per_epoch);
  each_sink([&](Sink& sink) { sink.eval({.step = run_.step, .epoch = epoch, .loss = result->loss, .top1 = result->top1, .top5 = result->top5, .images = result->images}); });
  try_to_write("evaluation.json", [&] {
    write_evaluation(setting_.folder, {.step = run_.step, .checkpoint = "", .data = plan_.config.data.path, .split = setting_.eval->header().split,
                                       .class_names = setting_.eval->header().classes, .result = *result});
  });
  return true;
}

void Trainer::save() {
  const NotTraining pause(*this, &PhaseRecord::checkpoint);
  const Phase before = progress_.phase;
  progress_.phase = Phase::checkpoint;
  fold_metrics();
  require_converging();
  run_.optimizer = optimizer_.status(device_);
  TrainingState state = take_snapshot(device_, comm_, network_, optimizer_, run_, group_);
  if (writer_) writer_->write(checkpoint_header(plan_, setting_.train->header(), comm_.size()), std::move(state), network_.parameters());
  saved_step_ = run_.step;
  has_improved_ = false;
  times_.checkpoint = stopwatch_seconds();
  progress_.phase = before;
  progress_.tick();
}

/// Takes the device's sums since the last time into the run's, over all ranks.
void Trainer::fold_metrics() {
  MetricSums sums;
  device_.copy_to_host(&sums, network_.executor().metrics(), sizeof sums);
  device_.zero(network_.executor().metrics(), sizeof sums);
  std::int64_t counts[] = {sums.images, sums.top1, sums.top5};
  comm_.sum(std::span<std::int64_t>(counts));
  const MetricSums total{comm_.sum(sums.loss), counts[0], counts[1], counts[2]};
  run_.since_record = run_.since_record + total;
  run_.since_epoch = run_.since_epoch + total;
}

void Trainer::require_converging() {
  const OptimizerStatus status = optimizer_.status(device_);
  const bool is_stuck = status.skipped_in_row >= plan_.config.run.max_skipped;
  if (status.diverged_step < 0 && !is_stuck) return;
  if (writer_) writer_->finish();
  report();
  const std::string good = comm_.broadcast(comm_.rank() == 0 ? newest_valid(setting_.folder + "/checkpoints").path : "", 0);
  fail_with(exit_diverged, is_stuck ? text_of(status.skipped_in_row, " steps in a row were skipped up to step ", run_.step)
                                    : text_of("the loss or a gradient is not finite at step ", status.diverged_step),
            " (loss scale ", status.loss_scale, "): the run has diverged. ",
            good.empty() ? "There is no checkpoint yet." : "The last good checkpoint is " + good + ".",
            " Lower optimizer.learning_rate, raise schedule.warmup_epochs, or set optimizer.clip_norm.");
}

void Trainer::record(bool is_epoch_end) {
  fold_metrics();
  require_converging();
  const OptimizerStatus status = optimizer_.status(device_);
  const double now = stopwatch_seconds(), elapsed = now - times_.record_start, wait = loader_->wait_seconds();
  const MetricSums& sums = run_.since_record;
  const std::size_t last = std::min(static_cast<std::size_t>(std::max<std::int64_t>(status.updates - 1, 0)), rates_.size() - 1);
  const double average = static_cast<double>(times_.images) / (now - times_.run_start);
  const double step_seconds = elapsed / static_cast<double>(std::max<std::int64_t>(run_.step - times_.step_at_record, 1));
  const TrainRecord record{.step = run_.step, .epoch = static_cast<double>(run_.step) / static_cast<double>(plan_.steps_per_epoch),
                           .loss = mean(sums.loss, sums.images), .top1 = mean(static_cast<double>(sums.top1), sums.images),
                           .top5 = mean(static_cast<double>(sums.top5), sums.images), .learning_rate = rates_[last] * static_cast<double>(run_.plateau.factor),
                           .images_per_second = static_cast<double>(times_.images - times_.images_at_record) / elapsed, .images_per_second_average = average,
                           .step_seconds = step_seconds, .data_wait = std::min(1.0, (wait - times_.wait_at_record) / elapsed), .loss_scale = status.loss_scale,
                           .grad_norm = status.grad_norm, .skipped = status.skipped, .memory_bytes = static_cast<std::int64_t>(device_.allocated_bytes()),
                           .seconds_left = static_cast<double>(plan_.total_steps - run_.step) * step_seconds,
                           .epochs = static_cast<double>(plan_.total_steps) / static_cast<double>(plan_.steps_per_epoch)};
  each_sink([&](Sink& sink) { sink.train(record); });
  const std::string advice = data_watch_.look(comm_, *loader_, *setting_.train, plan_.config.data, is_epoch_end);
  if (!advice.empty() && !cache_) console_.say(advice);
  run_.since_record = {};
  times_.record_start = now, times_.wait_at_record = wait, times_.images_at_record = times_.images, times_.step_at_record = run_.step;
}

/// The epoch's last record has been made.
void Trainer::end_epoch() {
  if (plan_.config.schedule.kind == "plateau") run_.plateau.observe(plan_.config.schedule, mean(run_.since_epoch.loss, run_.since_epoch.images));
  run_.since_epoch = {};
}

void Trainer::record_phases() {
  const double now = stopwatch_seconds(), wait = loader_->wait_seconds();
  PhaseRecord record = times_.phases;
  record.step = run_.step;
  record.data_wait = wait - times_.wait_at_phases;
  record.training = std::max(0.0, now - times_.phases_start - record.evaluation - record.checkpoint - record.data_wait);
  each_sink([&](Sink& sink) { sink.phases(record); });
  times_.phases = {}, times_.phases_start = now, times_.wait_at_phases = wait;
}

/// A run does not end for a file that is made anew each time; rank 0's.
template <class Write>
void Trainer::try_to_write(const std::string& what, Write&& write) {
  if (comm_.rank() != 0) return;
  try {
    write();
    failed_.erase(what);
  } catch (const std::exception& error) {
    if (failed_.insert(what).second) console_.say(text_of("warning: no ", what, " of step ", run_.step, ": ", error.what()));
  }
}

/// The page of the run so far.
void Trainer::report() {
  const NotTraining pause(*this, &PhaseRecord::evaluation);
  try_to_write("report", [this] { write_report(setting_.folder, setting_.eval); });
}

int Trainer::finish(bool is_stopped) {
  if (run_.step > first_step_ && run_.step != saved_step_) save();
  progress_.phase = Phase::finishing;
  if (writer_) {                         // renamed and fsynced before the barrier below
    const NotTraining pause(*this, &PhaseRecord::checkpoint);
    writer_->finish();
  }
  record_phases();
  loader_.reset();
  report();
  each_sink([](Sink& sink) { sink.finish(); });
  comm_.barrier();
  if (!is_stopped) {
    if (comm_.rank() == 0 && run_.best_step >= 0)
      console_.say(text_of("finished: ", run_.step, " steps; best top-1 ", std::round(1e4 * run_.best_top1) / 100, " % at step ", run_.best_step));
    return exit_done;
  }
  if (run_.step == first_step_ && !setting_.checkpoint.empty()) {
    if (comm_.rank() == 0) console_.say("stopped by a signal before any new step: a requeue would not get further. Ask for a longer time limit.");
    return exit_internal;
  }
  if (comm_.rank() == 0) console_.say(text_of("stopped by a signal after step ", run_.step, run_.step > 0 ? ", saved" : "", ": submit again to go on (exit code ", static_cast<int>(exit_stopped_early), ")"));
  return exit_stopped_early;
}

/// Nothing is saved: a profile is a look at some steps, and a run without it trains them again with the same bits.
int Trainer::finish_profile() {
  loader_.reset();
  progress_.phase = Phase::finishing;
  if (writer_) writer_->finish();
  comm_.barrier();
  if (comm_.rank() == 0)
    console_.say(text_of("steps ", plan_.config.run.profile_from, " to ", run_.step, device_.is_host() ? " made; a CPU build hands nothing to a profiler, run.profile_from is for GPUs" : " handed to the profiler",
                         ". The run ends here without a checkpoint: without run.profile_from it goes on ", saved_step_ > 0 ? text_of("after step ", saved_step_) : "from the start"));
  return exit_done;
}

}  // namespace lockstep
