// `lockstep keys`: every key of an input file.
#include <iostream>

#include "base/config.hpp"
#include "train/commands/commands.hpp"

namespace lockstep {

int run_keys(const Invocation&) {
  std::cout << describe_keys() << std::flush;
  return exit_done;
}

}  // namespace lockstep
