// CIFAR's binary files are made by Python, with known labels and pixels.
#include <gtest/gtest.h>

#include "convert/harness.hpp"
#include "storage/shards.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// FOLDER/in: the binary version with `records` images a file; FOLDER/x.tar.gz: the same as downloaded.
void make_cifar(const std::string& folder, const std::string& kind, int records, bool with_names) {
  run_python(R"(
import os, sys, tarfile, numpy as np
folder, kind, records, with_names = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == '1'
os.makedirs(folder + '/in')
rng = np.random.default_rng(1)
files = [f'data_batch_{i}.bin' for i in range(1, 6)] + ['test_batch.bin'] if kind == 'cifar10' else ['train.bin', 'test.bin']
classes = 10 if kind == 'cifar10' else 100
for name in files:
    out = rng.integers(0, 256, (records, (1 if classes == 10 else 2) + 3072), dtype=np.uint8)
    out[:, 0] %= 10
    if classes == 100: out[:, 1] %= 100
    out.tofile(f'{folder}/in/{name}')
if with_names: open(folder + '/in/' + ('batches.meta.txt' if classes == 10 else 'fine_label_names.txt'), 'w').write(''.join(f'name{i}\n' for i in range(classes)) + '\n')
with tarfile.open(folder + '/x.tar.gz', 'w:gz', format=tarfile.USTAR_FORMAT) as tar: tar.add(folder + '/in', 'cifar-binary')
)", {folder, kind, std::to_string(records), with_names ? "1" : "0"});
}

TEST(Cifar, FolderAndArchiveGiveTheSourcesPixelsLabelsAndOrder) {
  for (const std::string kind : {"cifar10", "cifar100"}) {
    const ScratchFolder folder;
    make_cifar(folder.path(), kind, 300, true);
    ASSERT_EQ(convert_with({kind, folder / "in", folder / "a"}).code, 0);
    ASSERT_EQ(convert_with({kind, folder / "x.tar.gz", folder / "b"}).code, 0);
    for (const char* file : {"/train-00000-of-00001.h5", "/val-00000-of-00001.h5"}) EXPECT_TRUE(read_file(folder / "a" + file) == read_file(folder / "b" + file));
    EXPECT_EQ(run_python(R"(
import sys, h5py, numpy as np
folder, kind = sys.argv[1:]
files = {'train': [f'data_batch_{i}.bin' for i in range(1, 6)], 'val': ['test_batch.bin']} if kind == 'cifar10' else {'train': ['train.bin'], 'val': ['test.bin']}
head = 1 if kind == 'cifar10' else 2
for split, names in files.items():
    raw = np.concatenate([np.fromfile(f'{folder}/in/{n}', np.uint8).reshape(-1, head + 3072) for n in names])
    with h5py.File(f'{folder}/a/{split}-00000-of-00001.h5') as f:
        assert (f['labels'][:] == raw[:, head - 1]).all()
        assert (f['images'][:] == raw[:, head:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)).all()
        assert [c.decode() if isinstance(c, bytes) else c for c in f.attrs['classes']] == [f'name{i}' for i in range(10 if head == 1 else 100)]
print('ok')
)", {folder.path(), kind}), "ok\n");
  }
}

TEST(Cifar, KnowsTheOfficialNames) {
  const ScratchFolder folder;
  make_cifar(folder.path(), "cifar10", 20, false);
  ASSERT_EQ(convert_with({"cifar10", folder / "in", folder / "o"}).code, 0);
  const auto& classes = Dataset(folder / "o", "val").header().classes;
  EXPECT_EQ(classes, (std::vector<std::string>{"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"}));
}

TEST(Cifar, WrongFilesAreNamed) {
  const ScratchFolder folder;
  make_cifar(folder.path(), "cifar10", 20, true);
  const auto outcome = [&](const std::string& input) { return convert_with({"cifar10", input, folder / "o"}); };
  const std::string whole = read_file(folder / "in/data_batch_3.bin");

  write_file(folder / "in/data_batch_3.bin", whole.substr(0, 50000));
  EXPECT_EQ(outcome(folder / "in").code, 2);
  EXPECT_TRUE(outcome(folder / "in").says("data_batch_3.bin has 50000 bytes"));

  std::string wrong = whole;
  wrong[2 * 3073] = 10;
  write_file(folder / "in/data_batch_3.bin", wrong);
  EXPECT_EQ(outcome(folder / "in").code, 2);
  EXPECT_TRUE(outcome(folder / "in").says("data_batch_3.bin, image 2: label 10 is not below 10"));

  fs::remove(folder / "in/data_batch_3.bin");
  EXPECT_TRUE(outcome(folder / "in").says("has no data_batch_3.bin"));
  EXPECT_TRUE(outcome(folder.path()).says("has no data_batch_1.bin"));

  const std::string archive = read_file(folder / "x.tar.gz");
  write_file(folder / "cut.tar.gz", archive.substr(0, archive.size() / 2));
  EXPECT_EQ(outcome(folder / "cut.tar.gz").code, 2);
  EXPECT_TRUE(outcome(folder / "cut.tar.gz").says("cut.tar.gz: is damaged or cut off"));
  write_file(folder / "no.tar.gz", std::string(5000, 'x'));
  EXPECT_TRUE(outcome(folder / "no.tar.gz").says("no.tar.gz: is no tar archive"));
  EXPECT_FALSE(fs::exists(folder / "o/train-00000-of-00001.h5"));
}

// Found by the fuzz program: a header's size is believed only as far as the archive's bytes go.
TEST(Cifar, SizesInAnArchiveThatCannotBeAreRefused) {
  const ScratchFolder folder;
  for (const auto& [size, says] : {std::pair("zzzzzzzzzzz", "is damaged"), {"-0000000001", "is damaged"}, {"00000000008", "is damaged"}, {"77777777777", "holds more than 1 GiB"}, {"10000000001", "holds more than 1 GiB"}, {"07777777777", "is damaged or cut off"}}) {
    std::string header(512, '\0');
    header.replace(0, 16, "data_batch_1.bin"), header.replace(124, 11, size), header.replace(257, 5, "ustar");
    write_file(folder / "x.tar", header + std::string(2048, 'x'));
    const auto outcome = convert_with({"cifar10", folder / "x.tar", folder / "o"});
    EXPECT_EQ(outcome.code, 2) << size;
    EXPECT_TRUE(outcome.says(std::string("x.tar: ") + says)) << size;
  }
}

}  // namespace
}  // namespace lockstep
