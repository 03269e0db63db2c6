#include "train/predict/pictures.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>

#include "images/image_files.hpp"
#include "train/chosen_checkpoint.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool is_folder(const std::string& path) {
  std::error_code unknown;               // a name that is too long for the file system is none
  return fs::is_directory(path, unknown);
}
void require_there(const std::string& path) {
  std::error_code unknown;
  require(fs::exists(path, unknown), path, ": no such file. Name images, folders of images, or shards.");
}

class ImageFiles final : public Pictures {
 public:
  ImageFiles(const std::vector<std::string>& arguments, const std::string& checkpoint, const CheckpointHeader& header) : classes_(header.class_names) {
    start_codec();
    require(header.size > 0 && !header.fit.empty(), checkpoint, " does not say how its images were cut and of which size",
            header.is_imported() ? ", since it was imported" : "", ". Convert the images as its own were (lockstep-convert image-folder), and predict from the shards.");
    options_.fit = header.fit == "none" ? Fit::cover : fit_of(header.fit);   // stored as they were, all of one size
    options_.size = header.size, options_.rotate = header.rotate == "exif";
    options_.max_aspect = std::numeric_limits<double>::infinity();           // conversion leaves longer ones out; here each is asked for
    for (const std::string& argument : arguments) add(argument);
    require(!files_.empty(), "no images in ", arguments[0], arguments.size() > 1 ? ", ..." : "", ". Name image files, or folders that hold some.");
  }
  std::int64_t size() const override { return std::ssize(files_); }
  ShardHeader header() const override {
    ShardHeader header{.split = "", .classes = classes_, .fit = name_of(options_.fit), .rotate = "", .size = options_.size, .mean = {}, .std = {}, .source = ""};
    if (options_.fit != Fit::short_side) header.height = header.width = options_.size;
    return header;
  }
  std::string name(std::int64_t i) override { return at(i).path; }
  std::int32_t label(std::int64_t i) const override { return at(i).label; }
  DecodedImage image(std::int64_t i) const override { return decode_image(at(i).path, options_); }

 private:
  struct File {
    std::string path;
    std::int32_t label;
  };
  const File& at(std::int64_t i) const { return files_[static_cast<std::size_t>(i)]; }
  std::int32_t class_called(const std::string& name) const {
    const auto found = std::ranges::find(classes_, name);
    return found == classes_.end() ? -1 : static_cast<std::int32_t>(found - classes_.begin());
  }
  std::int32_t label_of(const fs::path& folder, const fs::path& below) const {
    const fs::path absolute = fs::absolute(folder).lexically_normal();
    std::int32_t label = -1;
    for (const fs::path& part : (absolute.has_filename() ? absolute : absolute.parent_path()).filename() / below.parent_path())
      if (label < 0) label = class_called(part.string());
    return label;
  }
  void add(const std::string& argument) {
    const fs::path path = argument;
    require_there(argument);
    if (!is_folder(argument)) {
      files_.push_back({argument, label_of(path.has_parent_path() ? path.parent_path() : ".", path.filename())});
      return;
    }
    for (const std::string& image : ImageWalk(path, "").images) files_.push_back({(path / image).string(), label_of(path, image)});
  }
  DecodeOptions options_;
  std::vector<std::string> classes_;
  std::vector<File> files_;
};

bool is_shard_folder(const std::string& path) { return is_folder(path) && !splits_in(path).empty(); }
bool is_of_shards(const std::string& argument) { return argument.ends_with(".h5") || is_shard_folder(argument); }

class ShardImages final : public Pictures {
 public:
  ShardImages(const std::vector<std::string>& arguments, const std::string& split, const std::string& checkpoint, const CheckpointHeader& header, std::int64_t asked) {
    for (const std::string& argument : arguments) {
      if (is_folder(argument)) add(argument, argument, split, "");
      else add_file(argument);
    }
    for (const auto& [key, set] : sets_) {
      note_ = require_classes(checkpoint, header, asked, key.first, set->header().classes);
      require(set->header().classes == first_->header().classes, "the classes of ", key.first, " are not those of ", arguments[0], ". Predict them apart.");
      require(set->header().height == first_->header().height && set->header().width == first_->header().width, "the images of ", key.first, " are of another size than those of ", arguments[0],
              ". Predict them apart.");
    }
  }
  std::int64_t size() const override { return std::ssize(images_); }
  ShardHeader header() const override { return first_->header(); }
  std::string note() const override { return note_; }
  std::string name(std::int64_t i) override {
    const Image& image = at(i);
    const int shard = record(image).shard;
    if (named_ != std::pair(image.set, shard)) {                    // asked in order: one shard's names at a time
      names_ = image.set->names_of(shard), named_ = {image.set, shard};
      const auto records = image.set->records();
      first_of_named_ = std::ranges::find(records, shard, &ImageRecord::shard) - records.begin();
    }
    return names_.at(static_cast<std::size_t>(image.id - first_of_named_));
  }
  std::int32_t label(std::int64_t i) const override { return record(at(i)).label; }
  DecodedImage image(std::int64_t i) const override {
    const ImageRecord& stored = record(at(i));
    DecodedImage image{stored.height, stored.width, std::vector<std::uint8_t>(static_cast<std::size_t>(stored.bytes()))};
    at(i).set->read(at(i).id, image.pixels.data());
    return image;
  }

 private:
  struct Image {
    const Dataset* set;
    std::int64_t id;
  };
  const Image& at(std::int64_t i) const { return images_[static_cast<std::size_t>(i)]; }
  static const ImageRecord& record(const Image& image) { return image.set->records()[static_cast<std::size_t>(image.id)]; }

  void add_file(const std::string& path) {
    require_there(path);
    const std::string folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path().string() : ".", file = fs::path(path).filename().string();
    for (const std::string& split : splits_in(folder))
      if (file.starts_with(split + "-") && file.size() == shard_name(split, 0, 1).size()) return add(path, folder, split, file);
    fail(path, ": is no shard by its name. Shards are called ", shard_name("val", 0, 16), ".");
  }
  /// All of a split, or of one of its files.
  void add(const std::string& argument, const std::string& folder, const std::string& split, const std::string& file) {
    std::unique_ptr<Dataset>& set = sets_[{folder, split}];
    if (!set) set = std::make_unique<Dataset>(folder, split);
    if (!first_) first_ = set.get();
    int wanted = -1;
    for (std::size_t i = 0; i < set->files().size(); ++i)
      if (fs::path(set->files()[i]).filename() == file) wanted = static_cast<int>(i);
    require(file.empty() || wanted >= 0, argument, ": is none of its split's shards.");
    for (std::int64_t id = 0; id < set->size(); ++id)
      if (file.empty() || set->records()[static_cast<std::size_t>(id)].shard == wanted) images_.push_back({set.get(), id});
  }
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Dataset>> sets_;   // by folder and split
  const Dataset* first_ = nullptr;
  std::vector<Image> images_;
  std::string note_;
  std::vector<std::string> names_;
  std::pair<const Dataset*, int> named_{nullptr, -1};
  std::int64_t first_of_named_ = 0;
};

}  // namespace

std::unique_ptr<Pictures> open_pictures(const std::vector<std::string>& arguments, const std::string& split, const std::string& checkpoint, const CheckpointHeader& header, std::int64_t asked) {
  const auto shards = std::ranges::count_if(arguments, is_of_shards);
  require(shards == 0 || shards == std::ssize(arguments), "shards and image files in one call. Predict them apart.");
  if (shards > 0) return std::make_unique<ShardImages>(arguments, split, checkpoint, header, asked);
  return std::make_unique<ImageFiles>(arguments, checkpoint, header);
}

}  // namespace lockstep
