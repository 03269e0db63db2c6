// python: asks Debian's Python (numpy, h5py, torch come with env/install.sh --tests) for a truth that is not ours.
#pragma once
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/scratch.hpp"

namespace lockstep {

/// LOCKSTEP_PYTHON names another, where torch is elsewhere.
inline std::string python_program() {
  const char* const named = std::getenv("LOCKSTEP_PYTHON");
  return named ? named : "/usr/bin/python3";
}

/// Lines that give a script PyTorch's networks: make(name, classes, stem) of torch_models.py.
inline std::string python_models() {
  return "import sys\nsys.path.insert(0, '" + std::filesystem::path(__FILE__).parent_path().string() + "')\nimport numpy as np, torch\nfrom torch_models import make\n";
}

/// Runs the script with sys.argv[1:] = arguments.  Returns what it printed; throws with that text when it fails.
inline std::string run_python(const std::string& script, const std::vector<std::string>& arguments = {}) {
  const ScratchFolder folder;
  write_file(folder / "script.py", script);
  std::string command = python_program() + " " + (folder / "script.py");
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot start " + command);
  std::string printed;
  char block[4096];
  while (const std::size_t bytes = std::fread(block, 1, sizeof block, pipe)) printed.append(block, bytes);
  const int status = pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw std::runtime_error("python failed:\n" + printed);
  return printed;
}

}  // namespace lockstep
