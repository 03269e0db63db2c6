# Writes build_info.cpp: what this binary is made of, for --version and metrics.jsonl.  Run in every build, since the commit
# changes without CMake's knowledge; the file is touched only when its text changes.
# In: SOURCE, OUTPUT, VERSION, COMPILER, CONFIGURATION, LIBRARIES.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE hash OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(hash unknown)   # a copy without .git, or no commit yet
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
// Written by env/build_info.cmake.
#include "base/build_info.hpp"
namespace lockstep {
const BuildInfo& build_info() {
  static const BuildInfo info{"@VERSION@", "@hash@", "@COMPILER@", "@CONFIGURATION@", "@LIBRARIES@"};
  return info;
}
}  // namespace lockstep
]])
