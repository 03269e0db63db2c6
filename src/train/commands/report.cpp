// `lockstep report RUN [RUN...]`: writes a run's report.html anew, or one page that compares several runs.
#include <filesystem>
#include <iostream>

#include "storage/aside_file.hpp"
#include "train/commands/commands.hpp"
#include "train/report/report.hpp"
#include "train/run_folder.hpp"

namespace lockstep {

int run_report(const Invocation& invocation) {
  namespace fs = std::filesystem;
  std::vector<std::string> folders;
  for (const std::string& argument : invocation.arguments) {
    folders.push_back(find_run(argument, invocation.overrides).folder);
    require(fs::is_directory(folders.back()), folders.back(), ": this run has no folder yet, so there is nothing to report. Train first, or mend run.name or run.outputs.");
  }
  for (std::size_t i = 0; i < folders.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      require(!fs::equivalent(folders[i], folders[k]), folders[i], ": this run is named twice, and would count twice in means and spreads. Name each once.");
  const std::string& output = invocation.option("output");
  require(output.empty() || output.ends_with(".html"), "--output ", output, ": a page's name ends in .html. Name such a file.");
  require(output.empty() || !fs::is_directory(output), "--output ", output, ": is a folder. Name a file.");
  std::string path;
  if (folders.size() == 1 && output.empty()) {
    path = write_report(folders[0]);
  } else if (folders.size() == 1) {
    fail("--output is for several runs; the report of one is ", folders[0], "/report.html. Leave it out.");
  } else {
    path = output.empty() ? (fs::path(folders[0]).parent_path() / "comparison.html").string() : output;
    write_whole_file(path, {comparison_page(folders)});
  }
  std::cout << "written: " << path << "\n";
  return exit_done;
}

}  // namespace lockstep
