// report: OUTPUT/convert-report.txt.  What was asked ("key = value" lines, then an empty line), what was left out and why,
// what was written, and last "finished".  A conversion that was killed has no such last line; a rerun compares what was asked.
#pragma once
#include <string>

namespace lockstep {

class Report {
 public:
  /// Makes the folder.  Error when another conversion that is alive writes to it.
  explicit Report(const std::string& folder);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  const std::string& path() const { return path_; }
  const std::string& earlier_request() const { return earlier_request_; }   // empty: nothing was converted here
  bool is_earlier_finished() const { return is_earlier_finished_; }
  void begin(const std::string& request);                                   // forgets the earlier
  void add(const std::string& line);
  void finish();

 private:
  std::string path_, earlier_request_;
  bool is_earlier_finished_ = false;
  int fd_ = -1;                                                             // locked while this lives; the lock dies with the process
};

}  // namespace lockstep
