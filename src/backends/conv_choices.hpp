// conv_choices: which of a library's ways was the fastest for each problem, by name, so that a second start times nothing; and the workspace
// that it takes, so that memory can be planned where no GPU is.
// One line a choice in a text file: the library's name for the way, a tab, the problem as "DEVICE AND LIBRARY: CONVOLUTION", a tab, bytes of
// workspace, a tab, parts of sums.  Made on one rank, the same on all.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <string>
#include <system_error>
#include <utility>

namespace lockstep {

struct ConvChoice {
  std::string way;                       // empty: the library has none
  std::int64_t workspace_bytes = -1;     // -1: not known
  std::int64_t sum_parts = 0;            // ConvPlan's
};

class ConvChoices {
 public:
  /// From text(); lines that are none are ignored, and numbers that no library gives.
  void read(const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size()), tab = text.find('\t', at);
      if (tab < end) {
        const std::size_t problem_end = std::min(text.find('\t', tab + 1), end), bytes_end = std::min(text.find('\t', problem_end + 1), end);
        ConvChoice choice{.way = text.substr(at, tab - at)};
        const bool is_whole = (problem_end >= end || take_count(text, problem_end + 1, bytes_end, most_workspace_bytes, choice.workspace_bytes)) &&
                              (bytes_end >= end || take_count(text, bytes_end + 1, end, most_sum_parts_read, choice.sum_parts));
        if (is_whole) choices_[text.substr(tab + 1, problem_end - tab - 1)] = std::move(choice);
      }
      at = end + 1;
    }
  }
  std::string text() const {
    std::string lines;
    for (const auto& [problem, choice] : choices_) {
      lines.append(choice.way).append("\t").append(problem);
      if (choice.workspace_bytes >= 0) lines.append("\t").append(std::to_string(choice.workspace_bytes)).append("\t").append(std::to_string(choice.sum_parts));
      lines.append("\n");
    }
    return lines;
  }
  /// Null: not chosen yet.
  const ConvChoice* find(const std::string& problem) const {
    const auto found = choices_.find(problem);
    return found == choices_.end() ? nullptr : &found->second;
  }
  void add(const std::string& problem, const ConvChoice& choice) { choices_[problem] = choice; }

  /// What was chosen for a convolution on any device: where several were, the choice with the largest workspace.  Null, and remembered
  /// in are_complete(), where none is known.
  const ConvChoice* find_on_any_device(const std::string& convolution) {
    const ConvChoice* largest = nullptr;
    for (const auto& [problem, choice] : choices_) {
      const std::size_t colon = problem.find(": ");
      if (colon == std::string::npos || problem.compare(colon + 2, std::string::npos, convolution) != 0 || choice.workspace_bytes < 0) continue;
      if (!largest || choice.workspace_bytes > largest->workspace_bytes || (largest->way.empty() && choice.workspace_bytes == largest->workspace_bytes)) largest = &choice;
    }
    are_complete_ = are_complete_ && largest;
    return largest;
  }
  /// Ways may be timed for so long in one start; then the library's first proposals are taken.  f32 kernels without TF32 take 0.2 s each to load (cuDNN 9.19).
  static constexpr double most_timing_seconds = 30;
  void add_timing(double seconds) { timing_seconds_ += seconds; }
  bool may_time() const { return timing_seconds_ < most_timing_seconds; }

  /// Whether all that find_on_any_device was asked for was known.
  bool are_complete() const { return are_complete_; }

 private:
  static constexpr std::int64_t most_workspace_bytes = std::int64_t{1} << 40, most_sum_parts_read = 1 << 20;
  /// Whether [begin, end) is a count of at most `most`.
  static bool take_count(const std::string& text, std::size_t begin, std::size_t end, std::int64_t most, std::int64_t& count) {
    const auto [rest, error] = std::from_chars(text.data() + begin, text.data() + end, count);
    return error == std::errc() && rest == text.data() + end && count >= 0 && count <= most;
  }

  std::map<std::string, ConvChoice> choices_;
  bool are_complete_ = true;
  double timing_seconds_ = 0;
};

}  // namespace lockstep
