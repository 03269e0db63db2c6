// conv_choices: which of a library's ways was the fastest for each problem, by name, so that a second start times nothing.
// One line a choice in a text file: the library's name for the way, a tab, the problem.  Made on one rank, the same on all.
#pragma once
#include <algorithm>
#include <map>
#include <string>

namespace lockstep {

class ConvChoices {
 public:
  /// From text(); lines that are none are ignored.
  void read(const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size()), tab = text.find('\t', at);
      if (tab < end) ways_[text.substr(tab + 1, end - tab - 1)] = text.substr(at, tab - at);
      at = end + 1;
    }
  }
  std::string text() const {
    std::string lines;
    for (const auto& [problem, way] : ways_) lines += way + "\t" + problem + "\n";
    return lines;
  }
  /// Null: not chosen yet.  Empty: the library has no way.
  const std::string* find(const std::string& problem) const {
    const auto found = ways_.find(problem);
    return found == ways_.end() ? nullptr : &found->second;
  }
  void add(const std::string& problem, const std::string& way) { ways_[problem] = way; }

 private:
  std::map<std::string, std::string> ways_;
};

}  // namespace lockstep
