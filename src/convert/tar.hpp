// tar: the files of a .tar or .tar.gz, whole, in memory.  For downloads of some hundred MB.
#pragma once
#include <map>
#include <string>

namespace lockstep {

/// Base name -> content of each regular file.  Error names the archive when it is damaged or cut off.
std::map<std::string, std::string> read_tar(const std::string& path);

}  // namespace lockstep
