// fuzz: gives damaged and hostile input to everything of lockstep that reads bytes from outside, under the address and undefined-behaviour sanitizers.
//   fuzz [TARGET...] [--seconds N] [--seed N] [--keep FOLDER]    no TARGET: all, N seconds each; ends with 1 if anything was found
//   fuzz TARGET --replay FILE...                                 one input again, as it was given to the reader
// Found is: a crash, a report of a sanitizer, another exception than our Error of bad input, a refusal that is not one printable line which names the
// file, anything on standard error, a second or more for one input, an allocation above what the input's size allows, a leak, and what a target's own
// oracle says.  What was found is kept as FOLDER/TARGET-KIND-N.  Each target runs in a process of its own, which a crash does not take the others with it.
#include <fcntl.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <sstream>
#include <utility>

#include "base/error.hpp"
#include "fuzz/coverage.hpp"
#include "fuzz/target.hpp"
#include "support/scratch.hpp"

extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, std::size_t), void (*on_free)(const volatile void*));   // its header comes with clang alone
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=256:handle_abort=1:allocator_may_return_null=0:detect_stack_use_after_return=0:malloc_context_size=16"; }

// What libhdf5 loses where it refuses a file; memory of ours that it lies in is not looked through by these.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }

namespace lockstep::fuzz {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t most_kept = 5;             // of one target
constexpr int slow_ms = 1000, hanging_seconds = 2;
constexpr std::size_t mutants_a_leak_check = 2000, most_corpus = 4000;

/// What the process of a target tells the one that started it, also when it dies.
struct Shared {
  std::uint64_t mutants = 0, accepted = 0, refused = 0, corpus = 0, reached = 0, found = 0, of_library = 0, largest_bytes = 0;
  double longest_ms = 0;
  std::size_t bytes = 0;                         // of the input that is being read
  char input[1 << 22];
};

// ---- allocations ----

bool is_counting = false;
std::size_t largest = 0;
std::size_t allowed_bytes = 0;
void on_malloc(const volatile void*, std::size_t bytes) {
  if (!is_counting) return;
  if (bytes > allowed_bytes && largest <= allowed_bytes) is_counting = false, __sanitizer_print_stack_trace(), is_counting = true;   // tells whose it is
  largest = std::max(largest, bytes);
}
void on_free(const volatile void*) {}

double cpu_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

/// Ends a reader that does not come back; the sanitizer then prints where it is.
void limit_cpu(int seconds) {
  const itimerval limit{{0, 0}, {seconds, 0}};
  ::setitimer(ITIMER_PROF, &limit, nullptr);
}
void on_limit(int) { std::abort(); }

/// Standard error of this process as a file that can be looked into.
class CapturedErrors {
 public:
  CapturedErrors() : file_(::memfd_create("errors", MFD_CLOEXEC)) { ::dup2(file_, STDERR_FILENO); }
  std::string text() const {
    std::string text(static_cast<std::size_t>(std::max<off_t>(::lseek(file_, 0, SEEK_END), 0)), '\0');
    if (::pread(file_, text.data(), text.size(), 0) < 0) text = "cannot be read";
    return text;
  }
  ~CapturedErrors() { ::close(file_); }
  CapturedErrors(const CapturedErrors&) = delete;
  CapturedErrors& operator=(const CapturedErrors&) = delete;
  bool is_empty() const { return ::lseek(file_, 0, SEEK_END) == 0; }
  void clear() {
    if (::ftruncate(file_, 0) == 0) ::lseek(file_, 0, SEEK_SET);
  }

 private:
  int file_;
};

bool is_one_printable_line(const std::string& text) {
  return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

std::string printable(std::string text, std::size_t most = 300) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text.substr(0, most);
}

/// Whether a stack trace begins in the library that a target knows to be weak, below the sanitizer's and the C library's own functions.
bool is_of_library(const Target& target, const std::string& trace) {
  if (target.library.empty()) return false;
  std::istringstream lines(trace);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t mark = line.find_first_not_of(' ');
    if (mark == std::string::npos || line[mark] != '#') continue;
    const auto has = [&](const char* part) { return line.find(part) != std::string::npos; };
    if (has("libsanitizer") || has("nptl/") || has("stdlib/") || has("sysdeps/") || has("libc.so") || has("libstdc++") || has("on_limit") || has("on_malloc") || has("fuzz_main.cpp")) continue;
    return has(target.library.c_str());
  }
  return false;
}

// ---- one target, in its own process ----

class Run {
 public:
  Run(const Target& target, Shared& shared, CapturedErrors& errors, std::string keep) : target_(target), shared_(shared), errors_(errors), keep_(std::move(keep)) {}

  /// Reads one input; whether it was accepted.
  bool read(const std::string& bytes) {
    shared_.bytes = std::min(bytes.size(), sizeof shared_.input);
    std::memcpy(shared_.input, bytes.data(), shared_.bytes);
    bool is_accepted = false;
    std::string fault, kind;
    const auto found = [&](const char* what, std::string why) {
      if (kind.empty()) kind = what, fault = std::move(why);
    };
    largest = 0, allowed_bytes = static_cast<std::size_t>(target_.bytes_constant + target_.bytes_a_byte * std::ssize(bytes));
    limit_cpu(hanging_seconds);
    const double start = cpu_ms();
    is_counting = true;
    try {
      target_.read(bytes);
      is_accepted = true;
      is_counting = false;
    } catch (const Error& error) {
      is_counting = false;
      const std::string message = error.what();
      if (error.code() != exit_bad_input) found("code", text_of("exit code ", error.code(), ": ", printable(message)));
      if (!is_one_printable_line(message)) found("line", "a message that is not one printable line: " + printable(message));
      if (std::ranges::none_of(target_.names, [&](const std::string& name) { return message.find(name) != std::string::npos; })) found("unnamed", "a message that does not name the file: " + message);
    } catch (const Fault& wrong) {
      is_counting = false, found("wrong", wrong.what);
    } catch (const std::exception& error) {
      is_counting = false, found("exception", text_of("an exception that is no Error: ", printable(error.what())));
    }
    const double ms = cpu_ms() - start;
    limit_cpu(0);
    if (largest > allowed_bytes)
      found("allocation", text_of("an allocation of ", largest, " bytes, where ", allowed_bytes, " are allowed for ", bytes.size(), " bytes of input:\n", errors_.text())), errors_.clear();
    if (ms >= slow_ms) found("slow", text_of("took ", ms, " ms"));
    if (!errors_.is_empty()) found("stderr", "printed on standard error:\n" + errors_.text()), errors_.clear();
    shared_.mutants += 1, (is_accepted ? shared_.accepted : shared_.refused) += 1;
    shared_.largest_bytes = std::max<std::uint64_t>(shared_.largest_bytes, largest), shared_.longest_ms = std::max(shared_.longest_ms, ms);
    if (!kind.empty() && is_of_library(target_, fault)) shared_.of_library += 1;
    else if (!kind.empty()) report(kind, fault, bytes);
    return is_accepted;
  }

  void leaks() {
    if (__lsan_do_recoverable_leak_check() == 0) return;
    report("leak", "memory that was lost in the last " + std::to_string(mutants_a_leak_check) + " inputs or earlier:\n" + errors_.text(), "");
    errors_.clear();
  }

  void report(const std::string& kind, const std::string& fault, const std::string& bytes) {
    if (std::ranges::count(kinds_, kind) >= 2) return;   // the first two of a kind say enough
    kinds_.push_back(kind);
    shared_.found += 1;
    const std::string path = keep_.empty() ? "" : text_of(keep_, "/", target_.name, "-", kind, "-", shared_.found);
    if (!path.empty()) put(path, bytes);
    std::printf("FOUND %s, %s (input %s): %s\n", target_.name.c_str(), kind.c_str(), path.empty() ? "not kept" : path.c_str(), fault.c_str());
    std::fflush(stdout);
  }

 private:
  const Target& target_;
  Shared& shared_;
  CapturedErrors& errors_;
  std::string keep_;
  std::vector<std::string> kinds_;
};

/// kept: a folder of inputs that reached something new before.
void fuzz(const Target& target, Shared& shared, CapturedErrors& errors, const std::string& keep, const std::string& kept, double seconds, std::uint64_t seed) {
  Random random(seed);
  Run run(target, shared, errors, keep);
  std::vector<std::string> corpus = target.seeds;
  for (const std::string& input : corpus) {
    forget_coverage();
    if (!run.read(input)) run.report("seed", "a valid input is refused", input);
    add_coverage();
  }
  for (std::string path; fs::exists(path = text_of(kept, "/", corpus.size() + 1));) {
    forget_coverage();
    run.read(corpus.emplace_back(read_file(path)));
    add_coverage();
  }
  const auto now = [] { timespec t{}; ::clock_gettime(CLOCK_MONOTONIC, &t); return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec); };
  for (const double end = now() + seconds; now() < end && shared.found < most_kept;) {
    // The seeds and what was found last are mutated most.
    const std::string& parent = random.one_in(4) ? random.of(target.seeds) : random.one_in(2) ? corpus[corpus.size() - 1 - random.below(std::min<std::size_t>(corpus.size(), 50))] : random.of(corpus);
    const std::string input = mutated(parent, random.of(corpus), target.words, target.most_bytes, random);
    const std::string given = target.repair(input, random);
    forget_coverage();
    run.read(given);
    if (add_coverage() && corpus.size() < most_corpus) {
      corpus.push_back(given);
      put(text_of(kept, "/", corpus.size()), given);   // for the process that goes on after a crash
    }
    if (shared.mutants % mutants_a_leak_check == 0) run.leaks();
    shared.corpus = corpus.size(), shared.reached = reached();
  }
  run.leaks();
}

std::string scratch_folder;

/// Runs `work` in a child.  True when it came back by itself.
template <class Work>
bool in_child(const Target& target, Shared& shared, const std::string& keep, Work&& work) {
  const int before = ::dup(STDERR_FILENO);
  CapturedErrors errors;                         // shared with the child: its last words
  const pid_t child = ::fork();
  if (child == 0) {
    scratch_folder += "/" + std::to_string(::getpid());
    fs::create_directories(scratch_folder);
    std::signal(SIGPROF, on_limit);
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    work(errors);
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  const std::string words = errors.text();
  ::dup2(before, STDERR_FILENO), ::close(before);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  if (is_of_library(target, words)) return shared.of_library += 1, false;
  shared.found += 1;
  const std::string path = keep.empty() ? "" : text_of(keep, "/", target.name, "-crash-", shared.found);
  if (!path.empty()) put(path, std::string(shared.input, shared.bytes));
  std::printf("FOUND %s, crash (input %s): the reader ended with status %d:\n%s\n", target.name.c_str(), path.empty() ? "not kept" : path.c_str(), status, words.substr(0, 6000).c_str());
  std::fflush(stdout);
  return false;
}

bool run_target(const Target& target, double seconds, std::uint64_t seed, const std::string& keep) {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Shared& shared = *new (memory) Shared;
  const std::string kept = scratch("corpus-" + target.name);
  fs::create_directories(kept);
  for (std::uint64_t turn = 0; shared.found < most_kept; ++turn) {
    const std::time_t start = std::time(nullptr);
    if (in_child(target, shared, keep, [&](CapturedErrors& errors) { fuzz(target, shared, errors, keep, kept, seconds, seed + turn); })) break;
    seconds -= static_cast<double>(std::time(nullptr) - start);
    if (seconds < 1) break;
  }
  std::printf("%-12s %10llu %10llu %10llu %9.1f %12llu %7llu %7llu %7llu %6llu\n", target.name.c_str(), static_cast<unsigned long long>(shared.mutants), static_cast<unsigned long long>(shared.accepted),
              static_cast<unsigned long long>(shared.refused), shared.longest_ms, static_cast<unsigned long long>(shared.largest_bytes), static_cast<unsigned long long>(shared.corpus),
              static_cast<unsigned long long>(shared.reached), static_cast<unsigned long long>(shared.of_library), static_cast<unsigned long long>(shared.found));
  std::fflush(stdout);
  const bool is_clean = shared.found == 0 && shared.refused + shared.accepted > target.seeds.size();
  ::munmap(memory, sizeof(Shared));
  return is_clean;
}

int fuzz_main(const std::vector<std::string>& arguments) {
  std::string base = fs::is_directory("/dev/shm") ? "/dev/shm/lockstep-fuzz-XXXXXX" : "/tmp/lockstep-fuzz-XXXXXX";
  if (!::mkdtemp(base.data())) return std::perror("mkdtemp"), 1;
  scratch_folder = base;
  double seconds = 5;
  std::uint64_t seed = 1;
  std::string keep;
  std::vector<std::string> wanted, replayed;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool has_value = i + 1 < arguments.size();
    if (arguments[i] == "--seconds" && has_value) seconds = std::atof(arguments[++i].c_str());
    else if (arguments[i] == "--seed" && has_value) seed = std::strtoull(arguments[++i].c_str(), nullptr, 10);
    else if (arguments[i] == "--keep" && has_value) fs::create_directories(keep = arguments[++i]);
    else if (arguments[i] == "--replay") replayed.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, arguments.end()), i = arguments.size();
    else wanted.push_back(arguments[i]);
  }
  using Make = Target (*)();
  const std::vector<std::pair<std::string, Make>> all = {
      {"config", config_target}, {"overrides", overrides_target}, {"shard", shard_target}, {"checkpoint", checkpoint_target}, {"safetensors", safetensors_target}, {"torch_zip", torch_zip_target},
      {"torch_stream", torch_stream_target}, {"pickle", pickle_target}, {"cifar", cifar_target}, {"choices", choices_target}, {"metrics", metrics_target}, {"evaluation", evaluation_target}, {"image", image_target}};
  for (const std::string& name : wanted)
    if (std::ranges::none_of(all, [&](const auto& t) { return t.first == name; })) return std::fprintf(stderr, "fuzz: there is no target %s\n", name.c_str()), 2;
  bool is_clean = true;
  if (replayed.empty()) std::printf("%-12s %10s %10s %10s %9s %12s %7s %7s %7s %6s\n", "target", "mutants", "accepted", "refused", "most ms", "most bytes", "corpus", "edges", "library", "found"), std::fflush(stdout);
  for (const auto& [name, make] : all) {
    if (!wanted.empty() && std::ranges::count(wanted, name) == 0) continue;
    const Target target = make();
    if (replayed.empty()) {
      is_clean = run_target(target, seconds, seed, keep) && is_clean;
      continue;
    }
    for (const std::string& path : replayed) {
      std::ifstream file(path, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      try {
        target.read(bytes);
        std::printf("%s: accepted\n", path.c_str());
      } catch (const Error& error) {
        std::printf("%s: refused: %s\n", path.c_str(), error.what());
      } catch (const Fault& wrong) {
        std::printf("%s: wrong: %s\n", path.c_str(), wrong.what.c_str());
      }
    }
  }
  std::error_code ignored;
  fs::remove_all(base, ignored);
  return is_clean ? 0 : 1;
}

}  // namespace

std::string scratch(const std::string& name) { return scratch_folder + "/" + name; }

void put(const std::string& path, const std::string& bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0 || ::write(file, bytes.data(), bytes.size()) != std::ssize(bytes)) std::perror(path.c_str()), std::abort();
  ::close(file);
}

}  // namespace lockstep::fuzz

int main(int argc, char** argv) { return lockstep::fuzz::fuzz_main({argv + 1, argv + argc}); }
