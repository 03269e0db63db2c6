// file_lock: a lock file, held alone or shared (flock), which is free when its process ends, however it ends.
#pragma once
#include <functional>
#include <string>

#include "storage/descriptor.hpp"

namespace lockstep {

class FileLock {
 public:
  enum class Kind { alone, shared };
  /// Takes it; the file is made where it is missing.  waits = false: is_held() says whether it could be had now; else: Error where it cannot be made or locked, and tick is called
  /// again and again meanwhile.
  FileLock(const std::string& path, Kind kind, bool waits, const std::function<void()>& tick = [] {});
  bool is_held() const { return file_.fd >= 0; }
  /// For the next eviction: used now.
  void touch() const;
  /// Removes the lock's file; held alone.
  void remove() const;

 private:
  std::string path_;
  Descriptor file_;
};

}  // namespace lockstep
