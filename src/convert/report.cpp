#include "convert/report.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"

namespace lockstep {
namespace {
constexpr const char* last_line = "finished\n";
}

Report::Report(const std::string& folder) : path_((std::filesystem::path(folder) / "convert-report.txt").string()) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(!error, folder, ": cannot be made: ", error.message());
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  require(fd_ >= 0, path_, ": cannot be opened: ", std::strerror(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {       // file systems without locks: no protection
    ::close(fd_);
    fail(folder, ": another lockstep-convert is writing here. Wait for it, or choose another OUTPUT");
  }
  std::string text;
  char block[4096];
  for (ssize_t got = 0; (got = ::read(fd_, block, sizeof block)) > 0;) text.append(block, static_cast<std::size_t>(got));
  earlier_request_ = text.substr(0, text.find("\n\n") + 1);
  is_earlier_finished_ = text.ends_with(std::string("\n") + last_line);
}

Report::~Report() { ::close(fd_); }

void Report::begin(const std::string& request) {
  if (::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0) fail(path_, ": cannot be written: ", std::strerror(errno));
  add(request);
}

void Report::add(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) fail(path_, ": cannot be written: ", std::strerror(errno));
}

void Report::finish() {
  if (::write(fd_, last_line, std::strlen(last_line)) <= 0 || ::fsync(fd_) != 0) fail(path_, ": cannot be written: ", std::strerror(errno));
}

}  // namespace lockstep
