// standard_streams: descriptors 0, 1 and 2 are open, so that no file of ours gets one of these numbers where a launcher has closed them:
// what is printed would be written into it.
#pragma once
#include <fcntl.h>
#include <unistd.h>

namespace lockstep {

/// First of all in main.
inline void open_standard_streams() {
  for (int opened = 0; opened >= 0 && opened <= STDERR_FILENO;) opened = ::open("/dev/null", O_RDWR);
  // The one above them is left open too: it costs nothing.
}

}  // namespace lockstep
