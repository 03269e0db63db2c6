// evaluation: what evaluating a split has found, and the file that keeps it: <run>/evaluation.json.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace lockstep {

inline constexpr std::size_t worst_mistakes = 24;
/// An image that was taken for another class.
struct Mistake {
  std::int64_t image = 0;                                // in the data set
  std::int32_t label = 0, predicted = 0;
  float probability = 0, loss = 0;                       // of `predicted`; -log of the label's probability
};

struct Evaluation {
  std::int64_t images = 0;
  double loss = 0, top1 = 0, top5 = 0;                   // loss: mean over images; the others fractions
  std::vector<std::int64_t> class_images, class_correct; // by label
  std::vector<std::int64_t> confusion;                   // [label, prediction]; empty above 1000 classes
  std::vector<Mistake> mistakes;                         // of all ranks, the largest loss first, at most worst_mistakes; on rank 0
};

/// part / whole; 0 of nothing.
double fraction(std::int64_t part, std::int64_t whole);
/// Collective: on rank 0 the worst of all ranks' mistakes.
std::vector<Mistake> worst_of_all(Communicator& comm, std::vector<Mistake> mistakes);
/// Classes with their images and accuracy, worst first, at most `lines` of them.
std::string class_table(const Evaluation& e, const std::vector<std::string>& class_names, std::size_t lines);

struct EvaluationFile {
  std::int64_t step = 0;
  std::string checkpoint = {}, data = {}, split = {};    // checkpoint: empty during training; data: folder of the shards
  std::vector<std::string> class_names = {};
  Evaluation result = {};
};
/// <folder>/evaluation.json: totals, a line a class, the confusion matrix, the worst mistakes.  The whole file or what was there before.
void write_evaluation(const std::string& folder, const EvaluationFile& evaluation);
/// Nothing where there is no such file, or one that cannot be read.
std::optional<EvaluationFile> read_evaluation(const std::string& folder);

}  // namespace lockstep
