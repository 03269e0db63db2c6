#include "train/plan_cache.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "storage/aside_file.hpp"
#include "train/run_folder.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr const char* file_name = "convolutions.txt";

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void add_to(const fs::path& folder, const ConvChoices& choices) {
  const std::string path = folder / file_name;
  ConvChoices all;
  all.read(contents(path)), all.read(choices.text());
  if (all.text() == contents(path)) return;
  try {
    write_whole_file(path, {all.text()});
  } catch (const Error&) {               // costs the next start a few seconds, no more
  }
}

}  // namespace

ConvChoices read_choices(const RunConfig& run) {
  ConvChoices choices;
  choices.read(contents(fs::path(run.outputs) / file_name));
  choices.read(contents(fs::path(run_folder(run)) / file_name));
  return choices;
}

void keep_choices(const RunConfig& run, const ConvChoices& choices) {
  for (const fs::path& folder : {fs::path(run.outputs), fs::path(run_folder(run))})
    if (std::error_code none; fs::is_directory(folder, none)) add_to(folder, choices);
}

}  // namespace lockstep
