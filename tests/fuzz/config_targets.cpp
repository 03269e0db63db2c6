// config_targets: the TOML of input files and of checkpoints, and the overrides of a command line.  What is accepted must read back equal from its resolved text.
#include <sstream>

#include "base/config.hpp"
#include "base/error.hpp"
#include "fuzz/target.hpp"

namespace lockstep::fuzz {
namespace {

const std::vector<std::string> words = {"[", "]", "{", "}", "a.", "\"", "'", "\"\"\"", "'''", "\\u0000", "\\u001b", "\\U0010ffff", "#", "=", ".", ",", "\n", "\r\n", "[[", "]]", "0x", "1979-05-27T07:32:00Z", "inf", "-nan", "\xef\xbb\xbf",
                                        "[run]\n", "[data]\n", "epochs = ", "name = ", "mean = ", "optimizer.rate_parameters", "run.", "\x1b[31m", "{a=", "\"\\n\""};

void require_reads_back(const Config& config) {
  const std::vector<Difference> found = differences(config, parse_config(to_toml(config), "input.toml"));
  if (!found.empty()) throw Fault{found[0].key + " was " + found[0].before + " and reads back as " + found[0].after};
}

}  // namespace

Target config_target() {
  return {.name = "config",
          .seeds = {to_toml(Config()), "[run]\nname = \"a\"\nepochs = 3 # comment\n", "model.name = \"resnet20\"\nmodel.classes = 10\n[data]\nmean = [0.5, 0.25, 1e-1]\nstd = [\n  1,\n  0.2,\n  3,\n]\n",
                    "run = { name = 'b', epochs = 1_0 }\noptimizer.rate_parameters = [\"fc.*\", '''a\nb''']\noptimizer.rate_factors = [0x10, 2]\n"},
          .words = words,
          .read = [](const std::string& bytes) {
            const std::string path = scratch("input.toml");
            put(path, bytes);
            require_reads_back(read_config(path, {}));
          },
          .names = {"input.toml"}};
}

Target overrides_target() {
  return {.name = "overrides",
          .seeds = {"run.name=a\nrun.epochs=3\n", "data.mean=[0.5, 0.5, 0.5]\ndata.std=[1]", "optimizer.nesterov=true\noptimizer.momentum=0.9\nmodel.name=resnet20", "run.name=\"quoted \\u0041\""},
          .words = words,
          .read = [](const std::string& bytes) {
            std::vector<std::string> overrides;
            std::istringstream lines(bytes);
            for (std::string line; std::getline(lines, line);) overrides.push_back(line.substr(0, line.find('\0')));   // as a shell hands them over
            overrides.push_back("run.name=a");
            require_reads_back(read_config("", overrides));
          },
          .names = {"argument"},
          .most_bytes = 1 << 14};
}

}  // namespace lockstep::fuzz
