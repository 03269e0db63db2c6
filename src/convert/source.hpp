// source: where images come from.  A source lists its images cheaply, then gives the pixels of any of them, from any thread.
// To add one: a file with a subclass and its make function, and a line in convert/main.cpp.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "images/codec.hpp"
#include "storage/shards.hpp"

namespace lockstep {

/// --name of one source, bound to its member; the member's value is the default.
struct SourceOption {
  std::string name, meaning;
  std::variant<bool*, std::int64_t*, double*, std::string*> value;
  std::vector<std::string> words = {};        // the legal strings; empty: any
  std::string unwritten = {};                 // a value that reports leave out: what images were made with before there was this option
};

struct Item {                                 // all that is kept of an image while it is not being worked on
  std::int32_t label = 0;
  std::string name;
};

struct SourceSplit {
  std::string name;                           // train or val; train comes first
  bool is_shuffled = false;                   // written in a seeded random order
  std::vector<Item> items = {};
};

struct Listing {
  ShardHeader header;                         // all but split, mean, std and split_images
  std::vector<SourceSplit> splits;
  std::vector<std::string> remarks;           // for the report: what was left out, and why
};

class Source {
 public:
  virtual ~Source() = default;
  virtual std::string name() const = 0;       // the word on the command line
  virtual std::string summary() const = 0;    // what INPUT is
  virtual bool has_input() const { return true; }
  virtual std::vector<SourceOption> options() { return {}; }

  /// Called once, after the options are set.  Error of what is wrong with the input.
  virtual Listing open(const std::string& input, std::uint64_t seed) = 0;
  /// Pixels of splits[split].items[item].  Thread-safe.  Error when the image is broken: it is then left out.
  virtual DecodedImage image(const Listing& listing, std::size_t split, std::size_t item) const = 0;
  /// Pixels of a split in bytes, so that the disk's space can be asked for first.
  virtual std::int64_t predicted_bytes(const Listing& listing, std::size_t split) const {
    return 3 * listing.header.height * listing.header.width * static_cast<std::int64_t>(listing.splits[split].items.size());
  }
};

}  // namespace lockstep
