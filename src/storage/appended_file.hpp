// appended_file: a file that grows by whole pieces (lines, frames), each appended by one write, so that readers and kills meet no half one.
// What cannot be written (a full disk, a quota, a folder that is gone) is kept in memory and goes first the next time: nothing is lost while the process lives.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

class AppendedFile {
 public:
  /// warn: told once each time that writing begins to fail; may be empty.
  explicit AppendedFile(std::string path, std::function<void(const std::string&)> warn = {}) : path_(std::move(path)), warn_(std::move(warn)) {}
  /// No error of the disk is thrown.  A piece that was written in part is cut off again.
  void append(std::string_view piece);
  /// Ends the half line that a killed process may have left, so that the next one begins anew.
  void end_line();
  /// Error where something is still unwritten, after one more attempt.
  void finish();

 private:
  std::string write();                   // why it failed; empty: all is written
  std::string path_, kept_;
  std::function<void(const std::string&)> warn_;
  bool is_failing_ = false;
};

}  // namespace lockstep
