// models_torch: PyTorch as a test's truth: is it there, run a script in a folder, pass arrays to and fro in files.
// Tests that need it begin with `if (!has_torch()) GTEST_SKIP() << no_torch;`.
#pragma once
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/python.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {

inline constexpr const char* no_torch = "no /usr/bin/python3 with torch and torchvision; env/install.sh --tests brings them";

inline bool has_torch() {
  static const bool found = std::system((python_program() + " -c 'import torch, torchvision' >/dev/null 2>&1").c_str()) == 0;
  return found;
}

/// Runs the script with `folder` as its working directory; returns what it printed.
inline std::string run_in(const ScratchFolder& folder, const std::string& script) {
  return run_python("import os, sys\nos.chdir(sys.argv[1])\n" + script, {folder.path()});
}

/// Arrays of T; numpy's tofile and fromfile on the other side.
template <class T>
void write_array(const std::string& path, const std::vector<T>& values) {
  write_file(path, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}
template <class T>
std::vector<T> read_array(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<T> values(bytes.size() / sizeof(T));
  bytes.copy(reinterpret_cast<char*>(values.data()), values.size() * sizeof(T));
  return values;
}

/// Every number of a text, in order.
inline std::vector<double> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<double> values;
  for (double value; in >> value;) values.push_back(value);
  return values;
}

}  // namespace lockstep::test
