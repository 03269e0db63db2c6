// pictures: what `lockstep predict` is asked about, in the order of its arguments: image files, or the images of shards.
// In: file names and the checkpoint's header, which says how the images that it was trained on were made.  Out: pixels as conversion makes them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "images/codec.hpp"
#include "storage/shards.hpp"
#include "train/checkpoint.hpp"

namespace lockstep {

class Pictures {
 public:
  virtual ~Pictures() = default;
  virtual std::int64_t size() const = 0;
  virtual ShardHeader header() const = 0;                           // as if all were in one data set
  virtual std::string note() const { return ""; }                   // a line for the user about their classes, or nothing
  virtual std::string name(std::int64_t i) = 0;
  virtual std::int32_t label(std::int64_t i) const = 0;             // -1: unknown
  virtual DecodedImage image(std::int64_t i) const = 0;             // thread-safe; Error that names the file when it is broken
};

/// Files, folders (searched, subfolders too), shards and folders of shards (of which `split` is taken); not both kinds.
/// A file's label is the first folder, from the argument on, that is called as a class.
/// checkpoint: the path of which header is; asked: model.classes as the user says it (see require_classes).
/// Errors: no such file, no image, shards of other classes, a build without libvips for anything but shards.
std::unique_ptr<Pictures> open_pictures(const std::vector<std::string>& arguments, const std::string& split, const std::string& checkpoint, const CheckpointHeader& header, std::int64_t asked);

}  // namespace lockstep
