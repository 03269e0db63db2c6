#include "storage/aside_file.hpp"

#include <filesystem>

#include "base/aside.hpp"
#include "base/error.hpp"
#include "storage/descriptor.hpp"
#include "storage/sealed_file.hpp"

namespace lockstep {

AsideFile::AsideFile(std::string path) : path_(std::move(path)), aside_(aside_of(path_, std::to_string(::getpid()))) {
  std::error_code unknown;
  require(!std::filesystem::is_directory(path_, unknown), path_, ": is a folder, and a file is to be written there. Name a file.");
  ::unlink(aside_.c_str());              // of a process that was killed and had this number
}

AsideFile::~AsideFile() {
  if (!is_published_) ::unlink(aside_.c_str());
}

void AsideFile::publish() {
  lockstep::publish(aside_, path_);
  is_published_ = true;
}

void write_whole_file(const std::string& path, const std::vector<std::string_view>& parts) {
  AsideFile written(path);
  {
    Descriptor file(::open(written.aside().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file) fail(path, " cannot be written: ", reason(), ". Check the folder and its permissions.");
    std::int64_t offset = 0;
    for (const std::string_view part : parts) {
      if (!write_at(file, part.data(), static_cast<std::int64_t>(part.size()), offset)) fail(path, " cannot be written: ", reason(), ". Check free space.");
      offset += static_cast<std::int64_t>(part.size());
    }
    if (!file.close()) fail(path, " cannot be written: ", reason(), ". Check free space.");
  }
  written.publish();
}

}  // namespace lockstep
