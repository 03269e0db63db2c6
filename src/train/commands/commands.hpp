// commands: what `lockstep COMMAND` can do.  One file a command, one line in main.cpp.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "tensor/device.hpp"

namespace lockstep {

struct Invocation {
  std::vector<std::string> arguments;    // before the overrides: input file, shard, ...
  std::vector<std::string> overrides;    // section.key=value
  std::map<std::string, std::string> options;   // --name value, of a command that has such
  double process_start = 0;              // by stopwatch_seconds()
  std::string job;                       // "Slurm job 17", or empty
  std::string option(const std::string& name) const { return options.contains(name) ? options.at(name) : ""; }   // empty: not given
};

/// One process, without MPI.  The exit code.
int run_inspect(const Invocation& invocation);
int run_keys(const Invocation& invocation);
int run_report(const Invocation& invocation);
int run_import(const Invocation& invocation);
int run_export(const Invocation& invocation);

/// All ranks, or one process.
int run_train(const Invocation& invocation, Communicator& comm, Device& device);
int run_eval(const Invocation& invocation, Communicator& comm, Device& device);
int run_bench(const Invocation& invocation, Communicator& comm, Device& device);
/// One process.
int run_predict(const Invocation& invocation, Communicator& comm, Device& device);
/// One process; the device may be one that plans only.
int run_check(const Invocation& invocation, Communicator& comm, Device& device);

}  // namespace lockstep
