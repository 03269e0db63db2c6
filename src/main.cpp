// lockstep COMMAND ARGUMENTS... [section.key=value ...]
// Owns the lifetime of MPI and Kokkos, and turns errors into one line and an exit code.
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <thread>

#include "base/build_info.hpp"
#include "base/error.hpp"
#include "base/standard_streams.hpp"
#include "comm/communicator.hpp"
#include "tensor/device.hpp"
#include "train/commands/commands.hpp"
#include "train/preemption.hpp"

namespace {

using namespace lockstep;

struct Command {
  const char* name;
  const char* argument;                  // what must be given
  const char* summary;
  int (*alone)(const Invocation&);       // one process without MPI, or
  int (*ranks)(const Invocation&, Communicator&, Device&);
  bool needs_device;
  std::vector<std::pair<const char*, const char*>> options = {};   // name and meaning of each --name VALUE
};

const Command commands[] = {
    {"train", "INPUT.toml", "train a network; goes on where the run was stopped", nullptr, run_train, true},
    {"eval", "INPUT.toml", "evaluate the run's best checkpoint, or eval.checkpoint=PATH", nullptr, run_eval, true},
    {"predict", "INPUT.toml|RUN IMAGES...", "classes and probabilities of image files, folders of them, or shards", nullptr, run_predict, true,
     {{"top", "classes of each image (5)"}, {"format", "text, csv or json (text)"}, {"output", "file; default: standard output"}}},
    {"check", "INPUT.toml", "say what a job would do and need, before it is queued (run.ranks=N)", nullptr, run_check, false},
    {"bench", "INPUT.toml", "time a training step on synthetic images, or reading with bench.io=true", nullptr, run_bench, true},
    {"inspect", "FILE...", "show and verify shards and checkpoints", run_inspect, nullptr, false},
    {"report", "RUN...", "write a run's report.html anew, or one page that compares several runs", run_report, nullptr, false, {{"output", "page of several runs; default: comparison.html beside the first"}}},
    {"import", "WEIGHTS CHECKPOINT", "make a checkpoint of safetensors or PyTorch's .pth", run_import, nullptr, false},
    {"export", "CHECKPOINT WEIGHTS", "write a checkpoint's weights as .safetensors or .pth, with torchvision's names", run_export, nullptr, false},
    {"keys", "", "list every key of an input file: default, range, meaning; or those that a WORD is part of", run_keys, nullptr, false},
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string batch_job() {
  const std::string id = variable("SLURM_JOB_ID");
  return id.empty() ? "" : "Slurm job " + id;
}

constexpr int most_threads = 512;           // of Kokkos' OpenMP pool: with more it writes past its end

/// Threads for Kokkos; 0: as OpenMP has it.  OpenMP itself takes all CPUs where its variable makes no sense.
int thread_count() {
  const std::string text = variable("OMP_NUM_THREADS");
  const int cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (text.find_first_not_of(' ') == std::string::npos) return cpus > most_threads ? most_threads : 0;
  const std::string first = text.substr(text.find_first_not_of(' '), text.find(',') - text.find_first_not_of(' '));   // a list: one number a level of nesting
  int threads = 0;
  const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), threads);
  const bool is_number = error == std::errc() && std::string_view(end, first.data() + first.size()).find_first_not_of(' ') == std::string_view::npos;
  require(is_number && threads >= 1 && threads <= most_threads, "OMP_NUM_THREADS = \"", text, "\" must be a whole number from 1 to ", most_threads, ", the threads of a rank. Set it to the CPUs of a rank, here at most ",
          std::min(cpus, most_threads), ".");
  return 0;
}

constexpr unsigned usual_patience = 2'000'000, patience_without_mpi = 4'000'000;   // microseconds

/// Of several ranks, and not the one that speaks first.
bool has_one_before(const std::string& who) { return !who.empty() && who.rfind("rank 0 ", 0) != 0; }

/// Printed once: where all ranks fail alike, rank 0 has printed and ended the job before another one speaks.  A launcher's signal meanwhile
/// says the same, and must not end this rank with a code of its own: srun hands on the highest.
void report(const std::string& message, unsigned patience = usual_patience) {
  const std::string who = rank_name();
  if (has_one_before(who)) {
    const int before = stop_requested();
    catch_stop_signals();
    ::usleep(patience);
    if (before == 0 && stop_requested() != 0) return;
  }
  const std::string line = text_of("lockstep", who.empty() ? "" : "[" + who + "]", ": error: ", on_one_line(message), "\n");
  std::cerr << line << std::flush;       // in one piece: other lines come at the same time
}

template <class Work>
int guarded(Work&& work, unsigned patience = usual_patience) {
  try {
    return work();
  } catch (const Error& error) {
    report(error.what(), patience);
    return error.code();
  } catch (const std::bad_alloc&) {
    report("this host has no memory left. Lower data.global_batch or data.slots, or use more ranks.");
    return exit_bad_input;
  } catch (const std::filesystem::filesystem_error& error) {   // a path of the user's, where nobody looked before it was used
    report(text_of(error.path1().string(), ": ", error.code().message(), ". Check this path and its permissions."), patience);
    return exit_bad_input;
  } catch (const std::exception& error) {
    report(error.what(), patience);
    return exit_internal;
  }
}

bool is_failure(int code) { return code != exit_done && code != exit_stopped_early; }

/// The ordinal of this rank's GPU, or -1 where the command can do without and a rank sees none.
int choose_device(Communicator& comm, bool needs_device) {
  if (is_host_build()) return 0;
  const VisibleGpus gpus = visible_gpus();
  if (!needs_device && comm.min(std::ssize(gpus.places)) == 0) return -1;
  return choose_gpu(comm, gpus);
}

int run_on_ranks(const Command& command, const Invocation& invocation) {
  std::unique_ptr<Communicator> comm = make_communicator();
  const BuildInfo& build = build_info();
  require_same(*comm, "the build", text_of(build.version, " ", build.git_hash, ", ", build.configuration, ", ", build.libraries));   // before anything that builds do differently
  require_same(*comm, "the command", command.name);
  const int threads = thread_count(), ordinal = choose_device(*comm, command.needs_device);
  std::optional<KokkosSession> kokkos;
  if (ordinal >= 0) kokkos.emplace(ordinal, threads);
  on_gpu_lost([](const std::string& message) {
    report(message);
    abort_all(exit_internal);
  });
  Device device(!kokkos.has_value());
  comm = with_gpus(std::move(comm), device, [](const std::string& line) { std::cerr << "lockstep: " << line << std::endl; });
  const int code = guarded([&] { return command.ranks(invocation, *comm, device); });
  if (is_failure(code)) abort_all(code);           // before NCCL and Kokkos are taken down: on a GPU that has failed they wait, or end the process in their own words
  return code;
}

std::atomic<bool> is_at_work{false};

/// A library that calls exit() ends this rank as if it were done (0), or had saved (75), and the others would wait for it.
void refuse_exit(int code, void*) {
  if (!is_at_work.exchange(false)) return;
  report(text_of("a library under lockstep has ended this process with exit(", code, "). What it said, if anything, stands above."));
  abort_all(exit_internal);
}

/// A launcher ends the other ranks at the first exit code that is not 0: rank 0 leaves last.
int leave(int code, int rank, int size) {
  if (code != exit_stopped_early || size == 1) return code;
  if (rank != 0) return exit_done;
  ::usleep(300'000);
  return code;
}

int run_guarded(const Command& command, const Invocation& invocation, int& argc, char**& argv) {
  if (command.alone) return guarded([&] { return command.alone(invocation); });
  if (command.ranks == run_train) {
    end_soon_after_sigterm(128 + SIGTERM);
    catch_stop_signals();                // a signal while MPI starts would end the job as if it had failed
  }
  std::optional<MpiSession> mpi;
  if (const int code = guarded([&] { return mpi.emplace(&argc, &argv), int{exit_done}; }, patience_without_mpi); code != exit_done) {
    if (!has_one_before(rank_name())) ::usleep(patience_without_mpi / 2);   // tasks that MPI did not bring together: one that starts later must not be ended before it can say so too
    abort_all(code);
  }
  const int rank = mpi->rank(), size = mpi->size();
  const int code = guarded([&] { return run_on_ranks(command, invocation); });
  if (is_failure(code)) abort_all(code);
  mpi.reset();
  return leave(code, rank, size);
}

int run(const Command& command, const Invocation& invocation, int& argc, char**& argv) {
  ::on_exit(refuse_exit, nullptr);
  is_at_work = true;
  const int code = run_guarded(command, invocation, argc, argv);
  is_at_work = false;
  return code;
}

std::string version() {
  const BuildInfo& b = build_info();
  return text_of("lockstep ", b.version, " (", b.git_hash, ")\n", b.configuration, ", ", b.compiler, "\n", b.libraries);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);   // TRUE would overrule storage/, where a file system may have no locks
  Invocation invocation;
  invocation.process_start = stopwatch_seconds();
  invocation.job = batch_job();
  CLI::App app("lockstep trains image classifiers.  Every key of an input file may be overridden: section.key=value", "lockstep");
  app.set_version_flag("--version", version());
  app.require_subcommand(1);
  app.footer("Exit codes: 0 done, 1 internal error, 2 bad input, 3 diverged, 75 stopped by a signal and saved: submit again.");
  const Command* chosen = nullptr;
  std::vector<std::string> words;
  for (const Command& command : commands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    const bool takes_any = *command.argument != '\0';
    auto* option = sub->add_option(takes_any ? command.argument : "WORD", words, takes_any ? "then section.key=value ..." : "");
    if (takes_any) option->required();
    for (const auto& [name, meaning] : command.options)
      sub->add_option_function<std::string>(text_of("--", name), [&invocation, name = std::string(name)](const std::string& value) {
        if (value.empty()) throw CLI::ValidationError("--" + name, "needs a value");
        invocation.options[name] = value;
      }, meaning);
    sub->callback([&chosen, &command] { chosen = &command; });
  }
  std::vector<std::string> names;
  for (const Command& command : commands) names.emplace_back(command.name);
  if (argc > 1 && argv[1][0] != '-' && std::ranges::find(names, argv[1]) == names.end()) {
    report(text_of("\"", argv[1], "\" is no command.", did_you_mean(argv[1], names), " See lockstep --help."));
    return exit_bad_input;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);               // --help, --version
  } catch (const CLI::ExtrasError& error) {
    report(std::string(error.what()) + ". Keys are given as section.key=value, such as run.epochs=10. See lockstep --help.");
    return exit_bad_input;
  } catch (const CLI::ParseError& error) {
    report(std::string(error.what()) + ". See lockstep --help.");
    return exit_bad_input;
  }
  if (std::ranges::count(words, "") > 0) {
    report(text_of("lockstep ", chosen->name, ": an argument is empty, as where a script's variable is not set. See lockstep --help."));
    return exit_bad_input;
  }
  for (const std::string& word : words) {
    std::error_code unknown;               // a file may have = in its name; an override may be too long for one
    const bool is_override = word.find('=') != std::string::npos && !std::filesystem::exists(word, unknown);
    (is_override ? invocation.overrides : invocation.arguments).push_back(word);
  }
  if (invocation.arguments.empty() && *chosen->argument != '\0') {
    report(text_of("lockstep ", chosen->name, " needs ", chosen->argument, " before its overrides. See lockstep --help."));
    return exit_bad_input;
  }
  const std::string_view wanted = chosen->argument;
  if (wanted.find(' ') != std::string_view::npos && !wanted.ends_with("...") && invocation.arguments.size() != 2) {
    report(text_of("lockstep ", chosen->name, " needs ", chosen->argument, ": two paths, and ", invocation.arguments.size(), " were given. See lockstep --help."));
    return exit_bad_input;
  }
  if (invocation.arguments.size() > 1 && wanted == "INPUT.toml") {
    report(text_of("\"", invocation.arguments[1], "\": lockstep ", chosen->name, " takes one INPUT.toml; what follows it is section.key=value. See lockstep keys."));
    return exit_bad_input;
  }
  return run(*chosen, invocation, argc, argv);
}
