// harness: runs the built lockstep-convert, and makes and reads its files with Python (PIL, h5py).
#pragma once
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "support/python.hpp"

namespace lockstep {

struct Outcome {
  int code = 0;
  std::string printed;                        // stdout and stderr
  bool says(const std::string& words) const { return printed.find(words) != std::string::npos; }
};

inline std::string converter() {
  const char* build = std::getenv("LOCKSTEP_BUILD");
  const std::filesystem::path folder = build ? build : std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  return (folder / "lockstep-convert").string();
}

inline Outcome run_command(const std::string& command) {
  Outcome outcome;
  std::FILE* pipe = popen(("{ " + command + "; } 2>&1").c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot start " + command);
  char block[4096];
  while (const std::size_t bytes = std::fread(block, 1, sizeof block, pipe)) outcome.printed.append(block, bytes);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

inline Outcome convert_with(const std::vector<std::string>& arguments) {
  std::string command = converter();
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  return run_command(command);
}

/// False in a build without libvips: tests of image folders skip.
inline bool has_images() {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "a");
  return !convert_with({"image-folder", folder.path(), folder / "out"}).says("LOCKSTEP_IMAGES=OFF");
}

/// Makes image files of one colour each: "train/cat/1.png" ...; the colour is a function of the path.
inline void make_images(const std::string& folder, const std::vector<std::string>& paths) {
  std::string list;
  for (const std::string& path : paths) list += path + "\n";
  write_file(folder + "/list", list);
  run_python(R"(
import os, sys, zlib
from PIL import Image
folder = sys.argv[1]
for path in open(folder + '/list').read().splitlines():
    os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
    color = zlib.crc32(path.encode()).to_bytes(4, 'big')[:3]
    Image.new('RGB', (40, 30), tuple(color)).save(os.path.join(folder, path), 'PNG')
os.remove(folder + '/list')
)", {folder});
}

/// One line an image of a split, in stored order: "CLASS NAME", by h5py.
inline std::string stored(const std::string& folder, const std::string& split) {
  return run_python(R"(
import glob, sys, h5py
for path in sorted(glob.glob(f'{sys.argv[1]}/{sys.argv[2]}-*.h5')):
    with h5py.File(path) as f:
        classes = [c.decode() if isinstance(c, bytes) else c for c in f.attrs['classes']]
        for label, name in zip(f['labels'], f['names']): print(classes[label], name.decode())
)", {folder, split});
}

/// The given file of ../shared/data, or of LOCKSTEP_TEST_DATA; empty when it is not there.
inline std::string test_data(const std::string& name) {
  const char* set = std::getenv("LOCKSTEP_TEST_DATA");
  const std::filesystem::path path = (set ? std::filesystem::path(set) : std::filesystem::path(__FILE__).parent_path() / "../../../shared/data") / name;
  return std::filesystem::exists(path) ? path.string() : "";
}

}  // namespace lockstep
