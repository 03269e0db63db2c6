#include "storage/stage.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "base/error.hpp"
#include "storage/shards.hpp"
#include "support/data_sets.hpp"
#include "support/limits.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// `shards` shards of 6 images of 64 x 64 pixels each: 74 KB.
void write_set(const std::string& folder, int shards, std::uint64_t seed = 0) {
  std::vector<TestImage> images;
  for (int i = 0; i < 6 * shards; ++i) images.push_back(test_image(64, 64, seed + static_cast<std::uint64_t>(i), i % 2));
  write_split(folder, "train", images, 2, shards);
}

class Stage : public ::testing::Test {
 protected:
  Stage() { write_set(source(), 4); }
  std::string source() const { return folder_ / "set a"; }
  std::string local() const { return folder_ / "local"; }
  StageSetting setting(std::int64_t limit = 0) const { return {.folder = local(), .host = "node17", .limit_bytes = limit, .threads = 3}; }
  std::function<void(const std::string&)> listener() {
    return [this](const std::string& line) { said += line + "\n"; };
  }
  std::unique_ptr<StagedShards> stage(const std::string& from, std::int64_t limit = 0) {
    said.clear();
    return std::make_unique<StagedShards>(read_manifest(from, "train", 2), setting(limit), listener());
  }
  std::string complaint(const std::string& from, std::int64_t limit = 0) {
    try {
      stage(from, limit);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), exit_bad_input);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
    return "no error";
  }
  static void require_equal_folders(const std::string& from, const std::string& to) {
    for (const std::string& name : shard_files(from, "train")) EXPECT_TRUE(read_file(from + "/" + name) == read_file(to + "/" + name)) << name;
  }
  std::string shard_of(const std::string& from, int index) { return from + "/" + shard_name("train", index, 4); }

  ScratchFolder folder_;
  std::string said;
};

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

TEST_F(Stage, AManifestReadsBackAndItsFolderIsOfTheShardsAlone) {
  const StageManifest manifest = read_manifest(source(), "train", 2);
  EXPECT_EQ(manifest.shards.size(), 4u);
  EXPECT_EQ(manifest.bytes(), static_cast<std::int64_t>(4 * fs::file_size(shard_of(source(), 0))));
  EXPECT_EQ(parse_manifest(manifest.text()).shards, manifest.shards);
  EXPECT_EQ(parse_manifest(manifest.text()).text(), manifest.text());
  EXPECT_EQ(manifest.folder_name(), read_manifest(source() + "/", "train", 1).folder_name());
  EXPECT_SAYS(manifest.folder_name(), "set_a-train-");
  fs::last_write_time(shard_of(source(), 2), fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_NE(manifest.folder_name(), read_manifest(source(), "train", 2).folder_name());
  EXPECT_THROW(parse_manifest("something else\n"), Error);
  EXPECT_THROW(parse_manifest(manifest.text() + "x\n"), Error);
}

TEST_F(Stage, ShardsAreCopiedOnceAndTakenAgain) {
  const auto first = stage(source());
  EXPECT_SAYS(said, "(4 of 4 shards)");
  require_equal_folders(source(), first->folder());
  EXPECT_EQ(Dataset(first->folder(), "train").size(), 24);
  const auto time = fs::last_write_time(shard_of(first->folder(), 0));
  const auto second = stage(source());      // while the first is in use
  EXPECT_EQ(said.find("copying"), std::string::npos) << said;
  EXPECT_SAYS(said, "train lies in " + first->folder());
  EXPECT_EQ(fs::last_write_time(shard_of(first->folder(), 0)), time);
  EXPECT_EQ(staged_bytes(read_manifest(source(), "train", 2), local()), read_manifest(source(), "train", 2).bytes());
}

TEST_F(Stage, WhatAKilledJobHasLeftIsFinished) {
  const std::string to = stage(source())->folder();
  fs::remove(shard_of(to, 1)), fs::remove(shard_of(to, 3));
  write_file(shard_of(to, 3) + ".4711.partial", "half");
  EXPECT_EQ(2 * staged_bytes(read_manifest(source(), "train", 2), local()), read_manifest(source(), "train", 2).bytes());
  stage(source());
  EXPECT_SAYS(said, "(2 of 4 shards)");
  require_equal_folders(source(), to);
  EXPECT_FALSE(fs::exists(shard_of(to, 3) + ".4711.partial"));
}

TEST_F(Stage, ADamagedCopyIsCopiedAgain) {
  const std::string to = stage(source())->folder(), whole = read_file(shard_of(source(), 2));
  for (const std::string& damaged : {whole.substr(0, whole.size() / 2), whole.substr(0, whole.size() - 1) + "x", std::string("x") + whole.substr(1), std::string(whole.size(), '\0')}) {
    write_file(shard_of(to, 2), damaged);
    stage(source());
    EXPECT_SAYS(said, "(1 of 4 shards)");
    require_equal_folders(source(), to);
  }
}

TEST_F(Stage, ADamagedSourceIsNamedAndNothingOfItStays) {
  const std::string damaged = shard_of(source(), 1), whole = read_file(damaged);
  std::string bytes = whole;
  const Dataset data(source(), "train");
  bytes[static_cast<std::size_t>(data.records()[8].offset)] ^= 1;
  write_file(damaged, bytes);
  EXPECT_SAYS(complaint(source()), damaged + ": 1 of 6 images differ from their checksums, the first is image 2 (image8)");
  bytes = whole;
  bytes[20] ^= 1;
  write_file(damaged, bytes);
  EXPECT_SAYS(complaint(source()), damaged + ": differs from its checksum");
  EXPECT_FALSE(fs::exists(local() + "/" + read_manifest(source(), "train", 1).folder_name() + "/" + shard_name("train", 1, 4)));
  fs::resize_file(damaged, 100);
  EXPECT_SAYS(complaint(source()), damaged + ": is truncated");
  fs::remove(damaged);
  EXPECT_SAYS(complaint(source()), "train-00001-of-00004.h5 is missing");
}

TEST_F(Stage, ASourceThatChangesMeanwhileIsNoticed) {
  const StageManifest manifest = read_manifest(source(), "train", 2);
  fs::last_write_time(shard_of(source(), 2), fs::file_time_type::clock::now() - std::chrono::hours(1));
  try {
    StagedShards(manifest, setting(), listener());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_SAYS(std::string(error.what()), shard_of(source(), 2) + ": was changed while it was copied");
  }
}

TEST_F(Stage, TheLongestUnusedGoFirstAndNoneThatIsInUse) {
  const std::string b = folder_ / "b", c = folder_ / "c", d = folder_ / "d";
  write_set(b, 4, 100), write_set(c, 4, 200), write_set(d, 4, 300);
  const std::int64_t each = read_manifest(source(), "train", 2).bytes(), limit = 3 * each + each / 2;
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };   // times of files tell what was used last
  const std::string of_a = stage(source(), limit)->folder();
  wait();
  const std::string of_b = stage(b, limit)->folder();
  wait();
  const std::string of_c = stage(c, limit)->folder();
  EXPECT_EQ(said.find("removed"), std::string::npos) << said;
  wait();
  stage(source(), limit);                   // a is used again: b is the oldest now
  const std::string of_d = stage(d, limit)->folder();
  EXPECT_SAYS(said, "removed " + of_b);
  EXPECT_TRUE(fs::exists(of_a) && !fs::exists(of_b) && fs::exists(of_c) && fs::exists(of_d));

  const auto user_a = stage(source(), limit), user_c = stage(c, limit);
  stage(b, limit);
  EXPECT_SAYS(said, "removed " + of_d);
  const auto user_b = stage(b, limit);
  EXPECT_SAYS(complaint(d, limit), "on host node17: split \"train\" takes");
  EXPECT_SAYS(complaint(d, limit), "more than data.stage_gib");
  EXPECT_TRUE(fs::exists(of_a) && fs::exists(of_b) && fs::exists(of_c) && !fs::exists(of_d));
  EXPECT_SAYS(complaint(d, each / 2), "data.stage_gib = ");
  EXPECT_EQ(Dataset(user_b->folder(), "train").size(), 24);
}

TEST_F(Stage, OtherFilesOfTheFolderAreLeftAlone) {
  fs::create_directories(local() + "/mine"), write_file(local() + "/mine/manifest", "of another program"), write_file(local() + "/notes", "mine");
  const std::int64_t each = read_manifest(source(), "train", 2).bytes();
  stage(source(), each);
  write_set(folder_ / "b", 4, 100);
  stage(folder_ / "b", each + each / 2);
  EXPECT_EQ(read_file(local() + "/mine/manifest"), "of another program");
  EXPECT_EQ(read_file(local() + "/notes"), "mine");
}

TEST_F(Stage, AFolderThatCannotBeUsedIsNamedWithItsHostAndTheRemedy) {
  write_file(local(), "in the way");
  EXPECT_SAYS(complaint(source()), "data.stage = \"" + local() + "\" on host node17: ");
  EXPECT_SAYS(complaint(source()), "set data.stage to \"\"");
  fs::remove(local());
  {
    const LoweredLimit limit(RLIMIT_FSIZE, 40000);   // half a shard
    EXPECT_SAYS(complaint(source()), "train-0000");
    EXPECT_SAYS(complaint(source()), "cannot be written: File too large. Free some space. Name another folder");
    EXPECT_SAYS(complaint(source()), "on host node17");
  }
  for (const auto& entry : fs::recursive_directory_iterator(local())) EXPECT_NE(entry.path().extension(), ".partial") << entry.path();
  EXPECT_EQ(complaint(source()), "no error");
}

TEST_F(Stage, JobsAtTheSameTimeDoNotDisturbEachOther) {
  const std::string b = folder_ / "b";
  write_set(b, 4, 100);
  const std::int64_t each = read_manifest(source(), "train", 2).bytes();
  std::vector<pid_t> jobs;
  for (int job = 0; job < 6; ++job) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int code = 0;
      try {
        for (int i = 0; i < 10 && code == 0; ++i) {   // with room for one and a half of them: each round throws the other set out, unless it is in use
          const std::string from = (i + job) % 2 ? source() : b;
          try {
            const StagedShards staged(read_manifest(from, "train", 2), setting(job < 2 ? each + each / 2 : 0), [](const std::string&) {});
            const Dataset data(staged.folder(), "train");
            std::vector<std::uint8_t> pixels(static_cast<std::size_t>(data.max_image_bytes()));
            for (std::int64_t id = 0; id < data.size(); ++id) data.read(id, pixels.data());
          } catch (const Error& error) {
            if (std::string(error.what()).find("other jobs use") == std::string::npos) std::fprintf(stderr, "%s\n", error.what()), code = 1;
          }
        }
      } catch (...) {
        code = 2;
      }
      ::_exit(code);
    }
    jobs.push_back(pid);
  }
  for (const pid_t pid : jobs) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  stage(source());
  require_equal_folders(source(), stage(source())->folder());
}

}  // namespace
}  // namespace lockstep
