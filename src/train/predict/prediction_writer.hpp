// prediction_writer: predictions as text, CSV or JSON, row by row.
#pragma once
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace lockstep {

struct Guess {
  std::string name;                      // of the class
  double probability = 0;
};
struct PredictionRow {
  std::string file, label;               // label: "" where it is unknown
  std::vector<Guess> guesses;            // the most probable first
};
struct UnreadFile {
  std::string file, reason;
};
struct PredictionSummary {
  std::string checkpoint, model;
  std::int64_t images = 0;
  std::vector<UnreadFile> unread = {};
  std::int64_t labelled = 0, top1 = 0, top5 = 0;         // images whose class was known, and of these the right ones
};

class PredictionWriter {
 public:
  virtual ~PredictionWriter() = default;
  virtual void row(const PredictionRow& row) = 0;
  virtual void finish(const PredictionSummary&) {}
};
/// format: text, csv or json; Error for any other.  top: guesses of each row.
std::unique_ptr<PredictionWriter> make_prediction_writer(const std::string& format, std::ostream& out, std::int64_t top);

}  // namespace lockstep
