// image-folder: images in folders by class.  Layouts of INPUT:
//   train/CLASS/... and val/CLASS/... (or test/CLASS/...); val/ may instead be flat, with --val-labels (ILSVRC);
//   CLASS/..., cut in two by --val-fraction; a flat folder alone, with --val-labels.
// As torchvision's ImageFolder: classes sorted by name, subfolders belong to their class, links are followed, the same endings count.
// Unlike it: hidden files and folders are passed over, and val takes its labels from train.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/random.hpp"
#include "convert/ground_truth.hpp"
#include "convert/source.hpp"
#include "images/image_files.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class ImageFolder final : public Source {
 public:
  std::string name() const override { return "image-folder"; }
  std::string summary() const override {
    return "INPUT: train/ and val/ (or test/) of class folders; or class folders alone, with --val-fraction; or images alone, with --val-labels";
  }
  std::vector<SourceOption> options() override {
    return {{"size", "S: pixels of the short side (cover, short), or of both", &options_.size},
            {"fit", "cover: short side S, center S x S cut out; short: short side S, nothing cut; stretch: S x S, aspect lost; pad: "
                    "long side S, black around", &fit_, {std::begin(fit_names), std::end(fit_names)}},
            {"no-rotate", "ignore EXIF orientation, as PIL does", &no_rotate_},
            {"max-aspect", "with --fit short: longer images are refused as broken", &options_.max_aspect},
            {"val-fraction", "part of each class that becomes split val where there is no val/; 0: no split val", &val_fraction_},
            {"val-dir", "folder of the validation images, if not INPUT/val or INPUT/test", &val_dir_},
            {"val-labels", "classes of flat validation images: a line \"CLASS\" for each in sorted order, or lines \"IMAGE CLASS\"; CLASS is "
                           "a name, or a number from 0 into the sorted names", &val_labels_},
            {"val-label-names", "line i names class number i, from 1: for ILSVRC's ground-truth IDs", &val_label_names_}};
  }

  Listing open(const std::string& input, std::uint64_t seed) override;
  DecodedImage image(const Listing& listing, std::size_t split, std::size_t item) const override {
    return decode_image(path_of(listing, split, item), options_);
  }
  std::int64_t predicted_bytes(const Listing& listing, std::size_t split) const override;

 private:
  std::string path_of(const Listing& listing, std::size_t split, std::size_t item) const {
    return (roots_[split] / listing.splits[split].items[item].name).string();
  }
  void check_options();
  void add_split(Listing& listing, const std::string& name, const fs::path& root, const std::string& below);
  void add_flat_val(Listing& listing, const fs::path& root, const std::string& below);
  void cut_val(Listing& listing, std::uint64_t seed);

  DecodeOptions options_;
  std::string fit_ = name_of(DecodeOptions{}.fit), val_dir_, val_labels_, val_label_names_;
  bool no_rotate_ = false;
  double val_fraction_ = -1;                                        // -1: not given
  std::vector<fs::path> roots_;                                     // names of a split's items continue this path
};

void ImageFolder::check_options() {
  options_.fit = fit_of(fit_);
  options_.rotate = !no_rotate_;
  require(options_.size >= 1 && options_.size <= 65535, "--size ", options_.size, " must be from 1 to 65535");
  require(options_.max_aspect >= 1, "--max-aspect ", options_.max_aspect, " must be at least 1");
  require(val_fraction_ == -1 || (val_fraction_ >= 0 && val_fraction_ < 1), "--val-fraction ", val_fraction_, " must be from 0 to below 1");
  require(val_label_names_.empty() || !val_labels_.empty(), "--val-label-names is of use only with --val-labels");
}

Listing ImageFolder::open(const std::string& input, std::uint64_t seed) {
  check_options();
  start_codec();
  require(fs::exists(input), input, ": does not exist");
  require(fs::is_directory(input), input, ": is no folder");
  const fs::path root = fs::path(input).lexically_normal();
  Listing listing;
  ShardHeader& header = listing.header;
  header.fit = fit_, header.rotate = no_rotate_ ? "none" : "exif", header.size = options_.size, header.source = name();
  if (options_.fit != Fit::short_side) header.height = header.width = options_.size;

  fs::path val_root = root;
  std::string val_below;
  if (!val_dir_.empty()) {
    require(fs::is_directory(val_dir_), "--val-dir ", val_dir_, ": is no folder");
    const fs::path val = fs::absolute(val_dir_).lexically_normal();
    const fs::path folder = val.has_filename() ? val : val.parent_path();    // "val/" is "val"
    val_root = folder.parent_path(), val_below = folder.filename().string();
    require(!fs::equivalent(folder, fs::is_directory(root / "train") ? root / "train" : root), "--val-dir ", val_dir_,
            ": is the folder of the training images, and evaluating on those says nothing. Name another, or take a part of each class for it by --val-fraction");
  } else if (fs::is_directory(root / "train")) {
    for (const char* word : {"test", "val"})
      if (fs::is_directory(root / word)) {
        if (!val_below.empty()) listing.remarks.push_back("test/ is left out: split val is made from val/");
        val_below = word;
      }
  }

  if (fs::is_directory(root / "train")) {
    add_split(listing, "train", root, "train");
  } else if (!list_folder(root).folders.empty()) {
    add_split(listing, "train", root, "");
  } else {
    require(!val_labels_.empty() && val_below.empty(), input, ": has no class folders. It must hold train/ and val/ of class folders, or class folders; "
            "validation images in one flat folder need --val-labels");
    header.classes = classes_in(list_folder(root).images, val_labels_, val_label_names_);
    add_flat_val(listing, root, "");
    return listing;
  }
  if (!val_below.empty()) {
    require(val_fraction_ == -1, "--val-fraction is for a folder without validation images, but ", (val_root / val_below).string(), " exists");
    if (list_folder(val_root / val_below).folders.empty()) add_flat_val(listing, val_root, val_below);
    else require(val_labels_.empty(), "--val-labels is for images in one flat folder, but ", (val_root / val_below).string(), " has class folders"),
      add_split(listing, "val", val_root, val_below);
  } else {
    require(val_fraction_ >= 0, input, ": has no val/ or test/. Give --val-fraction 0.2 to take a fifth of each class for it, or 0 for none");
    cut_val(listing, seed);
  }
  return listing;
}

void ImageFolder::add_split(Listing& listing, const std::string& name, const fs::path& root, const std::string& below) {
  const fs::path folder = root / below;
  const FolderList found = list_folder(folder);
  std::vector<std::string>& classes = listing.header.classes;
  const bool is_train = name == "train";
  if (is_train) {
    classes = found.folders;
    require(classes.size() >= 2, folder.string(), ": has ", classes.empty() ? "no class folders" : "one class folder, " + classes[0],
            "; a classifier needs at least two classes. Is the data set one level down?");
  }
  SourceSplit split{.name = name, .is_shuffled = is_train};
  std::int64_t others = std::ssize(found.others) + std::ssize(found.images), loops = 0;
  for (const std::string& folder_name : found.folders) {
    const auto at = std::ranges::lower_bound(classes, folder_name);
    require(at != classes.end() && *at == folder_name, (folder / folder_name).string(), ": class ", folder_name,
            " is not among the training classes. Add it to train/, or remove it here");
    const ImageWalk walk(root, below.empty() ? folder_name : below + "/" + folder_name);
    if (walk.images.empty()) listing.remarks.push_back(text_of("class ", folder_name, " has no images in ", folder.string()));
    others += walk.others, loops += walk.loops;
    for (const std::string& image : walk.images) split.items.push_back({static_cast<std::int32_t>(at - classes.begin()), image});
  }
  if (others > 0) listing.remarks.push_back(text_of(counted(others, "file"), " of ", folder.string(), " left out: in no class folder, or no image by its ending"));
  if (loops > 0) listing.remarks.push_back(text_of(counted(loops, "link"), " of ", folder.string(), " left out: back to a folder above"));
  require(!split.items.empty(), folder.string(), ": has no images in its class folders");
  roots_.push_back(root);
  listing.splits.push_back(std::move(split));
}

void ImageFolder::add_flat_val(Listing& listing, const fs::path& root, const std::string& below) {
  const fs::path folder = root / below;
  const FolderList found = list_folder(folder);
  require(!found.images.empty(), folder.string(), ": has neither class folders nor images");
  require(!val_labels_.empty(), folder.string(), ": has images but no class folders. Give --val-labels a file with the class of each");
  const std::vector<std::int32_t> labels = read_ground_truth(found.images, listing.header.classes, val_labels_, val_label_names_);
  SourceSplit split{.name = "val"};
  for (std::size_t i = 0; i < found.images.size(); ++i) split.items.push_back({labels[i], below.empty() ? found.images[i] : below + "/" + found.images[i]});
  roots_.push_back(root);
  listing.splits.push_back(std::move(split));
}

/// Moves a seeded choice of each class from train to a new split val; a class keeps at least one training image.
void ImageFolder::cut_val(Listing& listing, std::uint64_t seed) {
  if (val_fraction_ == 0) return;
  std::vector<Item> all = std::move(listing.splits[0].items);
  SourceSplit train{.name = "train", .is_shuffled = true}, val{.name = "val"};
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() && all[end].label == all[begin].label) ++end;
    const auto count = static_cast<std::int64_t>(end - begin);
    const auto wanted = std::min<std::int64_t>(count - 1, std::llrint(val_fraction_ * static_cast<double>(count)));
    std::vector<std::pair<std::uint64_t, std::size_t>> drawn;
    for (std::size_t i = begin; i < end; ++i) {
      const Bits4 bits = random_bits(seed, Purpose::convert_split, static_cast<std::uint64_t>(all[i].label), i - begin);
      drawn.push_back({static_cast<std::uint64_t>(bits[0]) << 32 | bits[1], i});
    }
    std::ranges::sort(drawn);
    std::set<std::size_t> chosen;
    for (std::int64_t i = 0; i < wanted; ++i) chosen.insert(drawn[static_cast<std::size_t>(i)].second);
    for (std::size_t i = begin; i < end; ++i) (chosen.contains(i) ? val : train).items.push_back(std::move(all[i]));
  }
  require(!val.items.empty(), "--val-fraction ", val_fraction_, " of these classes is no image at all. Raise it");
  listing.splits = {std::move(train), std::move(val)};
  roots_.push_back(roots_[0]);
}

/// Of images of own sizes, the headers of some are asked.
std::int64_t ImageFolder::predicted_bytes(const Listing& listing, std::size_t split) const {
  if (listing.header.height > 0) return Source::predicted_bytes(listing, split);
  const std::size_t count = listing.splits[split].items.size(), asked = std::min<std::size_t>(count, 256);
  double bytes = 0, readable = 0;
  for (std::size_t i = 0; i < asked; ++i) {
    try {
      const auto [height, width] = decoded_size(path_of(listing, split, i * count / asked), options_);
      bytes += 3.0 * static_cast<double>(height) * static_cast<double>(width), readable += 1;
    } catch (const Error&) {                                        // broken ones are named when their turn comes
    }
  }
  return readable == 0 ? 0 : static_cast<std::int64_t>(bytes / readable * static_cast<double>(count));
}

}  // namespace

std::unique_ptr<Source> make_image_folder() { return std::make_unique<ImageFolder>(); }

}  // namespace lockstep
