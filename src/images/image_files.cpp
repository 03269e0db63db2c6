#include "images/image_files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"

namespace lockstep {
namespace fs = std::filesystem;

bool is_image_name(const std::string& name) {
  constexpr std::array endings = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return std::ranges::any_of(endings, [&](const char* ending) { return lower.ends_with(ending); });
}

FolderList list_folder(const fs::path& path) {
  FolderList out;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code dangling;                                       // a link to nowhere is listed, and named when it cannot be read
    if (name.starts_with('.')) continue;
    if (entry->is_directory(dangling)) {
      if (!fs::exists(entry->path() / "convert-report.txt")) out.folders.push_back(name);   // OUTPUT inside INPUT is no class
    } else {
      (is_image_name(name) ? out.images : out.others).push_back(name);
    }
  }
  require(!error, path.string(), ": cannot be listed: ", error.message());
  std::ranges::sort(out.folders);
  std::ranges::sort(out.images);
  return out;
}

ImageWalk::ImageWalk(const fs::path& root, const std::string& below) { visit(root / below, below.empty() ? "" : below + "/"); }

void ImageWalk::visit(const fs::path& path, const std::string& prefix) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail(path.string(), ": cannot be read: ", std::strerror(errno));
  const std::pair here(status.st_dev, status.st_ino);
  if (std::ranges::count(ancestors_, here) > 0) {                   // a link back up
    ++loops;
    return;
  }
  ancestors_.push_back(here);
  const FolderList folder = list_folder(path);
  for (const std::string& image : folder.images) images.push_back(prefix + image);
  for (const std::string& next : folder.folders) visit(path / next, prefix + next + "/");
  others += std::ssize(folder.others);
  ancestors_.pop_back();
}

}  // namespace lockstep
