#include "storage/aside_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.hpp"
#include "support/limits.hpp"
#include "support/scratch.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

TEST(AsideFile, HasItsNameOnlyWhenItIsPublished) {
  const ScratchFolder folder;
  write_file(folder / "a", "old");
  {
    const AsideFile file(folder / "a");
    write_file(file.aside(), "new");
    EXPECT_EQ(read_file(folder / "a"), "old");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
  AsideFile file(folder / "a");
  write_file(file.aside(), "new");
  file.publish();
  EXPECT_EQ(read_file(folder / "a"), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(AsideFile, AWholeFileOrTheOneBeforeAtEverySizeOfTheDisk) {
  const ScratchFolder folder;
  for (rlim_t room = 0; room <= 12; ++room) {
    write_file(folder / "a", "old");
    std::string message;
    {
      const LoweredLimit limit(RLIMIT_FSIZE, room);
      try {
        write_whole_file(folder / "a", {"0123", "", "456789"});
      } catch (const Error& error) {
        message = error.what();
      }
    }
    EXPECT_EQ(read_file(folder / "a"), room < 10 ? "old" : "0123456789");
    EXPECT_EQ(message, room < 10 ? (folder / "a") + " cannot be written: File too large. Check free space." : "");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
  }
  EXPECT_THROW(write_whole_file(folder / "no/such/folder", {"x"}), Error);
}

}  // namespace
}  // namespace lockstep
