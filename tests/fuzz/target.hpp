// target: one reader of bytes from outside, as the fuzz program sees it.  A target is one file and one line in fuzz_main.cpp.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fuzz/mutator.hpp"

namespace lockstep::fuzz {

struct Target {
  std::string name;
  std::vector<std::string> seeds;                // valid input, made here; each must be accepted
  std::vector<std::string> words;                // pieces that the format knows, put in now and then
  /// Reads a mutant as the program does and uses what it got; an Error is a refusal.  Throws Fault where something read is not what it must be.
  std::function<void(const std::string& bytes)> read;
  /// Sets outer checksums right again, or leaves them wrong, so that not every mutant stops at the door.
  std::function<std::string(std::string mutant, Random& random)> repair = [](std::string mutant, Random&) { return mutant; };
  std::vector<std::string> names;                // a refusal's message must hold one of them
  /// No single allocation may be larger than bytes_constant + bytes_a_byte * bytes of the input.
  std::int64_t bytes_constant = 1 << 20, bytes_a_byte = 64;
  std::size_t most_bytes = 1 << 18;              // of a mutant
  std::string library = {};                      // of others, whose crashes and allocations are counted but not ours to mend
};

/// What a target finds wrong by itself: an oracle beside the sanitizers.
struct Fault {
  std::string what;
};

/// Where targets keep the files that readers want: a folder in memory, gone at the end.  Each process has its own.
std::string scratch(const std::string& name);
void put(const std::string& path, const std::string& bytes);

Target config_target();
Target overrides_target();
Target shard_target();
Target checkpoint_target();
Target safetensors_target();
Target torch_zip_target();
Target torch_stream_target();
Target pickle_target();
Target cifar_target();
Target choices_target();
Target metrics_target();
Target evaluation_target();
Target image_target();

}  // namespace lockstep::fuzz
