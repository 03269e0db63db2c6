// The command itself: what it prints and returns, what it leaves behind, and that h5py reads it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "convert/harness.hpp"
#include "storage/shards.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

TEST(Convert, HelpNamesEverySourceAndOption) {
  const Outcome help = convert_with({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* word : {"image-folder", "cifar10", "cifar100", "shapes", "--size", "--fit", "--no-rotate", "--max-aspect", "--val-fraction", "--val-dir",
                           "--val-labels", "--val-label-names", "--train", "--val", "--classes", "--seed", "--shards", "--threads", "--strict", "--force", "--overwrite", "OUTPUT"})
    EXPECT_TRUE(help.says(word)) << word;
  EXPECT_TRUE(convert_with({"image-folder", "--help"}).says("--val-fraction"));
}

TEST(Convert, AWrongCommandLineIsOneLineAndExitTwo) {
  const ScratchFolder folder;
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {}, {"nonsense"}, {"shapes"}, {"shapes", folder / "o", "--trian", "5"}, {"shapes", folder / "o", "--train", "many"}, {"shapes", folder / "o", "--train", "0"},
           {"shapes", folder / "o", "--size", "7"}, {"shapes", folder / "o", "--size", "1025"}, {"shapes", folder / "o", "--classes", "1"}, {"shapes", folder / "o", "--classes", "1001"},
           {"image-folder", folder / "missing", folder / "o"}, {"image-folder", folder.path(), folder / "o", "--fit", "squash"}, {"shapes", folder / "o", "--threads", "0"},
           {"shapes", folder / "o", "--train", "5", "--shards", "6"}, {"shapes", folder / "o", "--shards", "-1"}, {"shapes", "/proc/no", "--train", "5"},
           {"cifar10", folder / "missing", folder / "o"}}) {
    const Outcome outcome = convert_with(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.printed;
    EXPECT_TRUE(outcome.says("lockstep-convert: error: ")) << outcome.printed;
    EXPECT_EQ(outcome.printed.find("error:"), outcome.printed.rfind("error:"));
  }
  EXPECT_TRUE(convert_with({"shapes", folder / "o", "--trian", "5"}).says("--trian"));
  EXPECT_TRUE(convert_with({"shapes", folder / "o", "--size", "7"}).says("--size 7 must be from 8 to 1024"));
  EXPECT_TRUE(convert_with({"shapes", folder / "o", "--classes", "1001"}).says("--classes 1001 must be from 2 to 1000"));
}

TEST(Convert, BytesDoNotDependOnThreads) {
  const ScratchFolder folder;
  for (const char* threads : {"1", "2", "7"})
    ASSERT_EQ(convert_with({"shapes", folder / threads, "--train", "700", "--val", "90", "--shards", "3", "--threads", threads}).code, 0);
  ASSERT_EQ(files_in(folder / "1").size(), 7u);
  for (const std::string& file : files_in(folder / "1"))
    for (const char* threads : {"2", "7"}) EXPECT_TRUE(read_file(folder / "1/" + file) == read_file(folder / threads + ("/" + file))) << file;
}

TEST(Convert, H5pyReadsTheShardsAndAgreesOnMeanAndDeviation) {
  const ScratchFolder folder;
  ASSERT_EQ(convert_with({"shapes", folder.path(), "--train", "500", "--val", "30", "--shards", "2", "--seed", "5"}).code, 0);
  const std::string printed = run_python(R"(
import glob, sys, h5py, numpy as np
for split, count in (('train', 500), ('val', 30)):
    files = [h5py.File(p) for p in sorted(glob.glob(f'{sys.argv[1]}/{split}-*-of-00002.h5'))]
    assert len(files) == 2
    images = np.concatenate([f['images'][:] for f in files])
    assert images.shape == (count, 32, 32, 3) and images.dtype == np.uint8
    labels = np.concatenate([f['labels'][:] for f in files])
    assert sorted(np.bincount(labels)) == [count // 10] * 10
    names = np.concatenate([f['names'][:] for f in files])
    assert len(set(names)) == count
    assert (names.tolist() == sorted(names, key=lambda n: int(n.split(b'/')[1]))) == (split == 'val'), 'only train is shuffled'
    if split == 'train': mean, std = images.mean((0, 1, 2)) / 255, images.std((0, 1, 2)) / 255
    for f in files:
        assert f.attrs['split_images'] == count and f.attrs['source'] in ('shapes', b'shapes')
        assert len(f.attrs['classes']) == 10 and list(f.attrs['classes']) == sorted(f.attrs['classes'])
        np.testing.assert_allclose(f.attrs['mean'], mean, rtol=1e-12)
        np.testing.assert_allclose(f.attrs['std'], std, rtol=1e-10)
print('ok')
)", {folder.path()});
  EXPECT_EQ(printed, "ok\n");
  EXPECT_NE(inspect_shard(folder / "train-00001-of-00002.h5").find("250 of the split's 500"), std::string::npos);
}

TEST(Convert, ARerunIsDoneAtOnceAndAnotherRequestNeedsOverwrite) {
  const ScratchFolder folder;
  const std::vector<std::string> once = {"shapes", folder.path(), "--train", "50", "--val", "10"};
  ASSERT_EQ(convert_with(once).code, 0);
  const auto time = fs::last_write_time(folder / "train-00000-of-00001.h5");
  const Outcome again = convert_with(once);
  EXPECT_EQ(again.code, 0);
  EXPECT_TRUE(again.says("already converted"));
  EXPECT_EQ(fs::last_write_time(folder / "train-00000-of-00001.h5"), time);

  std::vector<std::string> other = {"shapes", folder.path(), "--train", "60", "--val", "10"};
  const Outcome refused = convert_with(other);
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(refused.says("was made with \"train = 50\", not \"train = 60\"")) << refused.printed;
  other.push_back("--overwrite");
  EXPECT_EQ(convert_with(other).code, 0);
  EXPECT_EQ(Dataset(folder.path(), "train").size(), 60);
  other.pop_back();
  other.insert(other.end(), {"--size", "40"});                     // an option whose default value the report leaves out
  EXPECT_TRUE(convert_with(other).says("was made without \"size = 40\""));
  other.push_back("--overwrite");
  EXPECT_EQ(convert_with(other).code, 0);
  other.resize(other.size() - 3);
  EXPECT_TRUE(convert_with(other).says("was made with \"size = 40\". Choose"));
  other.push_back("--overwrite");
  EXPECT_EQ(convert_with(other).code, 0);

  fs::remove(folder / "val-00000-of-00001.h5");                    // a damaged set is made again
  other.pop_back();
  EXPECT_EQ(convert_with(other).code, 0);
  EXPECT_EQ(Dataset(folder.path(), "val").size(), 10);

  fs::remove(folder / "convert-report.txt");                       // shards that somebody else put there are not touched
  EXPECT_EQ(convert_with(other).code, 2);
}

TEST(Convert, AKilledConversionLeavesNothingThatLooksFinishedAndARerunMends) {
  const ScratchFolder folder;
  const std::vector<std::string> arguments = {"shapes", folder.path(), "--train", "12000", "--val", "100", "--shards", "3"};
  for (const int milliseconds : {0, 200, 500}) {
    const pid_t child = fork();
    if (child == 0) {
      std::freopen("/dev/null", "w", stdout);
      execl(converter().c_str(), "lockstep-convert", "shapes", folder.path().c_str(), "--train", "12000", "--val", "100", "--shards", "3", nullptr);
      _exit(127);
    }
    for (int i = 0; i < 3000 && !fs::exists(folder / "train-00000-of-00003.h5.partial"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    const Outcome second = convert_with(arguments);                 // the first is alive
    if (waitpid(child, nullptr, WNOHANG) == child) continue;        // a very fast machine
    EXPECT_TRUE(second.says("another lockstep-convert is writing here")) << second.printed;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    for (const std::string& file : files_in(folder.path())) EXPECT_FALSE(file.ends_with(".h5")) << file;
    EXPECT_THROW(Dataset(folder.path(), "train"), Error);
  }
  EXPECT_EQ(convert_with(arguments).code, 0);
  EXPECT_EQ(files_in(folder.path()).size(), 7u);
  EXPECT_EQ(Dataset(folder.path(), "train").size(), 12000);
}

TEST(Convert, ALogHasPlainLinesAndTheReportSaysWhatWasWritten) {
  const ScratchFolder folder;
  const Outcome outcome = convert_with({"shapes", folder.path(), "--train", "50", "--val", "10"});
  EXPECT_FALSE(outcome.says("\r"));
  EXPECT_TRUE(outcome.says("train: 50 images, 10 classes, about 154 kB in 1 shard")) << outcome.printed;
  EXPECT_TRUE(outcome.says("50 of 50 images, "));
  const std::string report = read_file(folder / "convert-report.txt");
  EXPECT_NE(report.find("written: train: 50 images"), std::string::npos) << report;
  EXPECT_TRUE(report.ends_with("\nfinished\n"));
}

TEST(Convert, ATooSmallDiskIsSaidBeforeAnyWork) {
  const ScratchFolder folder;
  // Gigabytes of images on a file system of 1 MB; needs the right to mount.
  for (const auto& [options, size] : {std::pair("--train 1300000 --val 10", "4.1 GB"), std::pair("--size 256 --classes 1000 --train 60000 --val 10", "11.8 GB")}) {
    const Outcome outcome = run_command("unshare -m sh -c 'mount -t tmpfs -o size=1m none " + folder.path() + " && " + converter() + " shapes " + folder.path() + "/o " + options +
                                        "' || exit $?");
    if (outcome.says("mount") || outcome.says("unshare")) GTEST_SKIP() << outcome.printed;
    EXPECT_EQ(outcome.code, 2) << outcome.printed;
    EXPECT_TRUE(outcome.says(std::string("free, but about ") + size + " will be written. Free some, or --force")) << outcome.printed;
  }
}

}  // namespace
}  // namespace lockstep
