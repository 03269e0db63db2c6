// aside: the name under which a file is written until it is whole.
#pragma once
#include <functional>
#include <string>

#include "base/error.hpp"

namespace lockstep {

/// PATH[.MARK].partial, beside it; for a name so long that no file system takes this too, its beginning and a hash of it all.
inline std::string aside_of(const std::string& path, const std::string& mark = "") {
  constexpr std::size_t longest_name = 255;                 // bytes, of Linux
  const std::size_t begin = path.rfind('/') + 1;            // npos + 1 is 0
  const std::string folder = path.substr(0, begin), name = path.substr(begin), end = text_of(mark.empty() ? "" : ".", mark, ".partial");
  if (name.size() + end.size() <= longest_name || name.size() > longest_name) return path + end;
  const std::string hash = text_of(".", std::hash<std::string>()(name));
  return folder + name.substr(0, longest_name - hash.size() - end.size()) + hash + end;
}

}  // namespace lockstep
