// cifar: CIFAR-10 and CIFAR-100 in their official binary format (Krizhevsky 2009), a folder or the .tar.gz as downloaded.
// A record is the label byte (CIFAR-100: coarse, then fine; fine is taken) and 3072 bytes: 32x32 red, green, blue planes.
// The order is the source's; test becomes split val; classes keep their own numbers.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "convert/source.hpp"
#include "convert/tar.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t side = 32, pixels = side * side;

struct Format {
  const char* name;
  std::size_t label_bytes;                                          // the last of them is the label
  std::vector<std::vector<std::string>> files;                      // of train, of val
  std::size_t official_records;                                     // a train file
  const char* names_file;
  std::vector<std::string> names;                                   // when names_file is missing
};

const Format cifar10 = {"cifar10", 1,
  {{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"}, {"test_batch.bin"}},
  10000, "batches.meta.txt",
  {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"}};

const Format cifar100 = {"cifar100", 2, {{"train.bin"}, {"test.bin"}}, 50000, "fine_label_names.txt",
  {"apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy", "bridge", "bus",
   "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab",
   "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard",
   "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom",
   "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
   "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake",
   "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor", "train",
   "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm"}};

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), path.string(), ": cannot be read: ", std::strerror(errno));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    line.erase(line.find_last_not_of(" \r") + 1);
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

class Cifar final : public Source {
 public:
  explicit Cifar(const Format& format) : format_(format) {}
  std::string name() const override { return format_.name; }
  std::string summary() const override { return "INPUT: the binary version of the data set, a folder or the .tar.gz as downloaded"; }

  Listing open(const std::string& input, std::uint64_t) override {
    read_files(input);
    Listing listing;
    const auto names = files_.find(format_.names_file);
    ShardHeader& header = listing.header;
    header.classes = names == files_.end() ? format_.names : lines_of(names->second);
    header.height = header.width = header.size = side;
    header.fit = header.rotate = "none", header.source = format_.name;
    require(header.classes.size() == format_.names.size(), input, ": ", format_.names_file, " has ", header.classes.size(), " names, ",
            format_.name, " has ", format_.names.size());
    for (std::size_t split = 0; split < 2; ++split) {
      listing.splits.push_back({.name = split == 0 ? "train" : "val"});
      for (const std::string& file : format_.files[split]) list_file(input, file, listing);
      records_.push_back({});
      for (const std::string& file : format_.files[split])
        for (std::size_t at = 0; at < files_.at(file).size(); at += record_bytes()) records_.back().push_back(files_.at(file).data() + at);
    }
    return listing;
  }

  DecodedImage image(const Listing&, std::size_t split, std::size_t item) const override {
    const char* planes = records_[split][item] + format_.label_bytes;
    DecodedImage out{side, side, std::vector<std::uint8_t>(3 * pixels)};
    for (std::size_t i = 0; i < pixels; ++i)
      for (std::size_t c = 0; c < 3; ++c) out.pixels[3 * i + c] = static_cast<std::uint8_t>(planes[c * pixels + i]);
    return out;
  }

 private:
  std::size_t record_bytes() const { return format_.label_bytes + 3 * pixels; }

  void read_files(const std::string& input) {
    if (fs::is_directory(input)) {
      for (const auto& files : format_.files)
        for (const std::string& file : files)
          if (fs::exists(fs::path(input) / file)) files_[file] = content_of(fs::path(input) / file);
      if (fs::exists(fs::path(input) / format_.names_file)) files_[format_.names_file] = content_of(fs::path(input) / format_.names_file);
    } else {
      require(fs::exists(input), input, ": does not exist");
      files_ = read_tar(input);
    }
    for (const auto& files : format_.files)
      for (const std::string& file : files)
        require(files_.contains(file), input, ": has no ", file, ". ", format_.name, " needs the binary version: ", all_files());
  }

  std::string all_files() const {
    std::string text;
    for (const auto& files : format_.files)
      for (const std::string& file : files) text += (text.empty() ? "" : ", ") + file;
    return text;
  }

  void list_file(const std::string& input, const std::string& file, Listing& listing) const {
    const std::string& content = files_.at(file);
    const std::size_t records = content.size() / record_bytes();
    require(records > 0 && content.size() % record_bytes() == 0, input, ": ", file, " has ", content.size(), " bytes, which is no multiple of ",
            record_bytes(), ", an image's: it is cut off or no ", format_.name, " file");
    if (const std::size_t official = file.starts_with("test") ? 10000 : format_.official_records; records != official)
      listing.remarks.push_back(text_of(file, " holds ", records, " images; the official file holds ", official));
    for (std::size_t i = 0; i < records; ++i) {
      const auto label = static_cast<std::uint8_t>(content[i * record_bytes() + format_.label_bytes - 1]);
      require(label < format_.names.size(), input, ": ", file, ", image ", i, ": label ", int{label}, " is not below ", format_.names.size());
      listing.splits.back().items.push_back({label, text_of(file, "#", i)});
    }
  }

  const Format& format_;
  std::map<std::string, std::string> files_;                        // 184 MB in all
  std::vector<std::vector<const char*>> records_;
};

}  // namespace

std::unique_ptr<Source> make_cifar10() { return std::make_unique<Cifar>(cifar10); }
std::unique_ptr<Source> make_cifar100() { return std::make_unique<Cifar>(cifar100); }

}  // namespace lockstep
