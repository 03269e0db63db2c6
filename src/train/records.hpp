// records: what a run says about itself, and the lines of metrics.jsonl that hold it.
// Fractions are from 0 to 1, losses are means over images.  A number that is not finite is null in a line, and NaN when it is read.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

struct StartRecord {
  std::string run = {}, versions = {}, git_hash = {}, config = {}, job = {};   // job: "" outside of a batch system
  std::vector<std::string> hosts = {};
  std::int64_t ranks = 1, step = 0;                     // step: where it goes on
  std::string resumed_from = {};
  std::string rank_map = {};                            // ranks, hosts, threads or GPUs, as the log shows them
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

/// Where the seconds went since the record before, or since this process began.
struct PhaseRecord {
  std::int64_t step = 0;
  double start = 0, training = 0, data_wait = 0, evaluation = 0, checkpoint = 0;   // start: up to the first step; training: without the wait for data; evaluation: with its report
};

using Record = std::variant<StartRecord, TrainRecord, EvalRecord, PhaseRecord>;

/// One line, without its end.
std::string to_line(const Record& record);
/// Nothing for a line that is no record: half-written, or of another kind.
std::optional<Record> record_in(const std::string& line);
/// The records of <folder>/metrics.jsonl, in order; none where there is no such file.
std::vector<Record> read_records(const std::string& folder);

}  // namespace lockstep
