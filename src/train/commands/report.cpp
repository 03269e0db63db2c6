// `lockstep report RUN [RUN...]`: writes a run's report.html anew, or one page that compares several runs.
#include <filesystem>
#include <iostream>

#include "train/commands/commands.hpp"
#include "train/report/report.hpp"
#include "train/run_folder.hpp"

namespace lockstep {

int run_report(const Invocation& invocation) {
  namespace fs = std::filesystem;
  std::vector<std::string> folders;
  for (const std::string& argument : invocation.arguments) {
    const bool is_input = argument.ends_with(".toml") && fs::is_regular_file(argument);
    folders.push_back(is_input ? run_folder(read_config(argument, invocation.overrides).run) : argument);
    while (folders.back().size() > 1 && folders.back().ends_with('/')) folders.back().pop_back();
  }
  const std::string& output = invocation.option("output");
  std::string path;
  if (folders.size() == 1 && output.empty()) {
    path = write_report(folders[0]);
  } else if (folders.size() == 1) {
    fail("--output is for several runs; the report of one is ", folders[0], "/report.html. Leave it out.");
  } else {
    path = output.empty() ? (fs::path(folders[0]).parent_path() / "comparison.html").string() : output;
    write_aside(path, comparison_page(folders));
  }
  std::cout << "written: " << path << "\n";
  return exit_done;
}

}  // namespace lockstep
