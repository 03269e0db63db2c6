// mutator: changes bytes as damage and malice do: flipped bits, lengths that are huge or negative, cuts, repeats, pieces of other files.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::fuzz {

/// A sequence that is a function of its seed.
class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t bits();
  std::size_t below(std::size_t n);              // n > 0
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <class T>
  const T& of(const std::vector<T>& items) { return items[below(items.size())]; }

 private:
  std::uint64_t seed_, drawn_ = 0;
};

/// One to about eight changes of `bytes`; `other`: another input to take pieces of.  Never longer than `most` bytes.
std::string mutated(std::string bytes, const std::string& other, const std::vector<std::string>& words, std::size_t most, Random& random);

}  // namespace lockstep::fuzz
