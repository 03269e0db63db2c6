// limits: lowers a limit of this process for the life of an object.
#pragma once
#include <sys/resource.h>

#include <csignal>

namespace lockstep {

class LoweredLimit {
 public:
  LoweredLimit(__rlimit_resource kind, rlim_t value) : kind_(kind) {
    getrlimit(kind_, &before_);
    rlimit lowered = before_;
    lowered.rlim_cur = value;
    setrlimit(kind_, &lowered);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);   // a write past the size limit then fails with EFBIG, as on a full disk it does with ENOSPC
  }
  ~LoweredLimit() {
    setrlimit(kind_, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  LoweredLimit(const LoweredLimit&) = delete;
  LoweredLimit& operator=(const LoweredLimit&) = delete;

 private:
  __rlimit_resource kind_;
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

}  // namespace lockstep
