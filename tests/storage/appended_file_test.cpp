#include "storage/appended_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.hpp"
#include "support/limits.hpp"
#include "support/scratch.hpp"

namespace lockstep {
namespace {

TEST(AppendedFile, HoldsWholePiecesAtEverySizeOfTheDiskAndAllOfThemOnceThereIsRoom) {
  const std::string piece = "0123456789\n";
  for (rlim_t room = 0; room < 50; ++room) {
    const ScratchFolder folder;
    std::string warned;
    AppendedFile file(folder / "a", [&](const std::string& line) { warned += line; });
    {
      const LoweredLimit limit(RLIMIT_FSIZE, room);
      for (int i = 0; i < 4; ++i) file.append(piece);
      const std::string there = read_file(folder / "a");
      EXPECT_EQ(there.size() % piece.size(), 0u) << room;
      EXPECT_GE(there.size() + piece.size(), std::min<std::size_t>(room, 44));
      if (room < 44) {
        EXPECT_EQ(warned.find("warning: " + (folder / "a") + " cannot be written: "), 0u) << warned;
        EXPECT_EQ(warned.find("warning: ", 1), std::string::npos) << "said twice";
        EXPECT_THROW(file.finish(), Error);
      }
    }
    file.append(piece);
    EXPECT_NO_THROW(file.finish());
    EXPECT_EQ(read_file(folder / "a"), piece + piece + piece + piece + piece);
  }
}

TEST(AppendedFile, AFolderThatIsGoneIsToldAndWaitedFor) {
  const ScratchFolder folder;
  int warnings = 0;
  AppendedFile file(folder / "run/a", [&](const std::string&) { ++warnings; });
  file.append("1\n"), file.append("2\n");
  EXPECT_EQ(warnings, 1);
  EXPECT_THROW(file.finish(), Error);
  std::filesystem::create_directory(folder / "run");
  file.append("3\n");
  EXPECT_EQ(read_file(folder / "run/a"), "1\n2\n3\n");
  std::filesystem::remove_all(folder / "run");
  file.append("4\n");
  EXPECT_EQ(warnings, 2);
}

TEST(AppendedFile, AHalfLineIsEndedBeforeTheNext) {
  const ScratchFolder folder;
  for (const auto& [before, after] : {std::pair{"", "x\n"}, {"a\n", "a\nx\n"}, {"a\nhal", "a\nhal\nx\n"}}) {
    write_file(folder / "a", before);
    AppendedFile file(folder / "a");
    file.end_line();
    file.append("x\n");
    EXPECT_EQ(read_file(folder / "a"), after);
  }
}

}  // namespace
}  // namespace lockstep
