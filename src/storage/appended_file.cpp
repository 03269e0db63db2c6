#include "storage/appended_file.hpp"

#include "base/error.hpp"
#include "storage/descriptor.hpp"

namespace lockstep {

void AppendedFile::append(std::string_view piece) {
  kept_ += piece;
  const std::string why = write();
  if (!why.empty() && !is_failing_ && warn_) warn_(text_of("warning: ", path_, " cannot be written: ", why, ". What belongs there is kept in memory and tried again. Free some space, or check its folder."));
  is_failing_ = !why.empty();
}

void AppendedFile::end_line() {
  const Descriptor file(path_, O_RDONLY);
  const off_t bytes = file ? ::lseek(file.fd, 0, SEEK_END) : 0;
  char last = '\n';
  if (bytes > 0 && read_at(file, &last, 1, bytes - 1) == 1 && last != '\n') append("\n");
}

void AppendedFile::finish() {
  if (kept_.empty()) return;
  const std::string why = write();
  require(why.empty(), path_, " cannot be written: ", why, "; ", kept_.size(), " bytes that belong at its end are lost. Free some space, or check its folder.");
}

/// Opened anew each time: a folder that was removed is noticed, and a network file system says at the closing that it has no room.
std::string AppendedFile::write() {
  if (kept_.empty()) return "";
  Descriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file) return reason();
  ssize_t put = 0;
  do put = ::write(file.fd, kept_.data(), kept_.size());
  while (put < 0 && errno == EINTR);
  std::string why = put < 0 ? reason() : put < static_cast<ssize_t>(kept_.size()) ? std::strerror(ENOSPC) : "";
  const off_t end = ::lseek(file.fd, 0, SEEK_CUR);
  bool is_half = put > 0 && !why.empty();
  if (!file.close() && why.empty()) why = reason(), is_half = true;
  if (is_half && ::truncate(path_.c_str(), end - put) != 0) kept_.erase(0, static_cast<std::size_t>(put));   // then the rest completes it
  if (why.empty()) kept_.clear();
  return why;
}

}  // namespace lockstep
