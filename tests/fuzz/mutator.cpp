#include "fuzz/mutator.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "base/random.hpp"

namespace lockstep::fuzz {
namespace {

/// Numbers that lengths, counts and offsets are not expected to be.
std::uint64_t odd_number(std::size_t size, Random& random) {
  const std::vector<std::uint64_t> numbers = {0, 1, 2, 7, 8, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff, 0x10000, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff, 0x100000000,
                                              std::uint64_t{1} << 40, std::uint64_t{1} << 61, std::uint64_t{1} << 62, (std::uint64_t{1} << 62) + 1, ~std::uint64_t{0} >> 1, std::uint64_t{1} << 63, ~std::uint64_t{0} - 7, ~std::uint64_t{0},
                                              size, size - 1, size + 1, size / 2};
  return random.of(numbers);
}

std::string odd_text(Random& random) {
  const std::vector<std::string> texts = {"0", "-1", "1", "1e308", "1e999", "-1e999", "2147483648", "4294967295", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551615",
                                          "77777777777", "0.5", "nan", "inf", "-0", "1e-320", "99999999999999999999999999", "null", "true", "[]", "{}", "\"\"", "\"\\u001b[31m\"", "\"\\n\"", "\"\\u0000\""};
  return random.of(texts);
}

struct Range {
  std::size_t begin, bytes;
};
/// Short ones are more frequent.
Range range_in(const std::string& bytes, Random& random) {
  const std::size_t begin = random.below(bytes.size()), left = bytes.size() - begin;
  return {begin, std::min(left, 1 + random.below(random.one_in(4) ? left : std::min<std::size_t>(left, 32)))};
}

void set_number(std::string& bytes, std::uint64_t value, std::size_t width, std::size_t at, bool is_big_endian) {
  for (std::size_t i = 0; i < width && at + i < bytes.size(); ++i) bytes[at + (is_big_endian ? width - 1 - i : i)] = static_cast<char>(value >> (8 * i));
}

/// A run of digits, where there is one at or behind a random place.
Range digits_in(const std::string& bytes, Random& random) {
  std::size_t begin = random.below(bytes.size());
  while (begin < bytes.size() && !std::isdigit(static_cast<unsigned char>(bytes[begin]))) ++begin;
  std::size_t end = begin;
  while (end < bytes.size() && std::isdigit(static_cast<unsigned char>(bytes[end]))) ++end;
  return {begin, end - begin};
}

void change(std::string& bytes, const std::string& other, const std::vector<std::string>& words, std::size_t most, Random& random) {
  if (bytes.empty()) bytes.push_back(static_cast<char>(random.bits()));
  const std::size_t at = random.below(bytes.size());
  switch (random.below(16)) {
    case 0: case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8))); return;
    case 2: bytes[at] = static_cast<char>(random.bits()); return;
    case 3: case 4: {                                                                    // a length
      const std::size_t width = std::size_t{1} << random.below(4);
      if (at + width <= bytes.size()) set_number(bytes, odd_number(bytes.size(), random), width, at, random.one_in(4));
      return;
    }
    case 5: {                                                                            // a little more or less
      const std::size_t width = std::size_t{1} << random.below(4);
      if (at + width > bytes.size()) return;
      std::uint64_t value = 0;
      std::memcpy(&value, bytes.data() + at, width);
      set_number(bytes, value + random.below(33) - 16, width, at, false);
      return;
    }
    case 6: bytes.resize(at); return;                                                    // cut off
    case 7: { const Range r = range_in(bytes, random); bytes.erase(r.begin, r.bytes); return; }
    case 8: {                                                                            // repeated, now and then so often that nesting gets deep
      const Range r = range_in(bytes, random);
      const std::string piece = bytes.substr(r.begin, r.bytes);
      std::size_t times = 1 + random.below(random.one_in(6) ? most : 8);
      times = std::min(times, most / piece.size());
      std::string repeated;
      repeated.reserve(times * piece.size());
      for (std::size_t i = 0; i < times; ++i) repeated += piece;
      bytes.insert(r.begin, repeated);
      return;
    }
    case 9: {
      std::string piece(1 + random.below(16), '\0');
      for (char& c : piece) c = static_cast<char>(random.bits());
      bytes.insert(at, piece);
      return;
    }
    case 10: if (!words.empty()) bytes.insert(at, random.of(words)); return;
    case 11: if (!words.empty()) { const std::string& word = random.of(words); bytes.replace(at, std::min(word.size(), bytes.size() - at), word); } return;
    case 12: {                                                                           // this one's head, the other's tail
      if (!other.empty()) bytes = bytes.substr(0, at) + other.substr(random.one_in(2) ? std::min(at, other.size()) : random.below(other.size()));
      return;
    }
    case 13: {                                                                           // a piece of the other laid over it
      if (other.empty()) return;
      const Range r = range_in(other, random);
      bytes.replace(at, std::min(r.bytes, bytes.size() - at), other, r.begin, r.bytes);
      return;
    }
    case 14: {                                                                           // a piece of its own, elsewhere
      const Range r = range_in(bytes, random);
      const std::string piece = bytes.substr(r.begin, r.bytes);
      bytes.replace(at, std::min(piece.size(), bytes.size() - at), piece);
      return;
    }
    default: {                                                                           // a number written as text
      const Range r = digits_in(bytes, random);
      if (r.bytes > 0) bytes.replace(r.begin, r.bytes, odd_text(random));
    }
  }
}

}  // namespace

std::uint64_t Random::bits() {
  const Bits4 b = random_bits(seed_, Purpose::bench, 0, drawn_++);
  return std::uint64_t{b[0]} << 32 | b[1];
}
std::size_t Random::below(std::size_t n) { return bits() % n; }

std::string mutated(std::string bytes, const std::string& other, const std::vector<std::string>& words, std::size_t most, Random& random) {
  do {
    change(bytes, other, words, most, random);
    if (bytes.size() > most) bytes.resize(most);
  } while (!random.one_in(2) || random.one_in(8));
  return bytes;
}

}  // namespace lockstep::fuzz
