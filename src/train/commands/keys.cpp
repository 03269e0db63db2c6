// `lockstep keys [WORD]`: every key of an input file, or those in whose name or meaning a word stands.
#include <iostream>
#include <sstream>

#include "base/config.hpp"
#include "train/commands/commands.hpp"

namespace lockstep {

int run_keys(const Invocation& invocation) {
  require(invocation.overrides.empty() && invocation.arguments.size() <= 1, "lockstep keys takes one word to look for, or none: it lists keys with their defaults. `lockstep check INPUT.toml section.key=value` tries a value.");
  const std::string word = invocation.arguments.empty() ? "" : invocation.arguments[0];
  std::istringstream lines(describe_keys());
  std::string found;
  for (std::string line; std::getline(lines, line);)
    if (word.empty() || line.find(word) != std::string::npos) found += line + "\n";
  require(!found.empty(), "no key has \"", word, "\" in its name or meaning. `lockstep keys` lists all.");
  std::cout << found << std::flush;
  return exit_done;
}

}  // namespace lockstep
