// aside_file: a file that has its name only when it is whole.
// Written under another name in the same folder, fsynced, renamed, the folder fsynced: readers, kills and power cuts meet the old file or the new one.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class AsideFile {
 public:
  /// Two processes may write to one path at once: each has a name of its own.  Error where there is a folder.
  explicit AsideFile(std::string path);
  ~AsideFile();                          // not published: nothing is left behind
  AsideFile(const AsideFile&) = delete;
  AsideFile& operator=(const AsideFile&) = delete;
  const std::string& aside() const { return aside_; }   // where to write
  /// What was written and closed there gets its name.  Error naming the path.
  void publish();

 private:
  std::string path_, aside_;
  bool is_published_ = false;
};

/// The parts one after another, as one file.  Error naming the path.
void write_whole_file(const std::string& path, const std::vector<std::string_view>& parts);

}  // namespace lockstep
