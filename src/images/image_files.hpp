// image_files: which files of a folder are images, by their endings as torchvision's ImageFolder has them.  Hidden files and folders are passed over.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// By its ending, in any case.
bool is_image_name(const std::string& name);

struct FolderList {
  std::vector<std::string> folders, images;                         // names, sorted, without hidden ones
  std::vector<std::string> others;                                  // files with other endings
};
/// Error when it cannot be listed.  Folders that lockstep-convert has written into are not listed.
FolderList list_folder(const std::filesystem::path& path);

/// All images below root / below, subfolders too, links followed.
class ImageWalk {
 public:
  std::vector<std::string> images;                                  // paths, relative to root; a folder's images, then its folders'
  std::int64_t others = 0, loops = 0;                               // loops: links back to a folder above
  ImageWalk(const std::filesystem::path& root, const std::string& below);

 private:
  void visit(const std::filesystem::path& path, const std::string& prefix);
  std::vector<std::pair<dev_t, ino_t>> ancestors_;
};

}  // namespace lockstep
