#include <gtest/gtest.h>

#include "convert/harness.hpp"
#include "storage/shards.hpp"

namespace lockstep {
namespace {

TEST(Shapes, AreAFunctionOfSeedSplitAndIndexAlone) {
  const ScratchFolder folder;
  const auto make = [&](const std::string& name, const std::string& train, const std::string& seed) {
    ASSERT_EQ(convert_with({"shapes", folder / name, "--train", train, "--val", "20", "--seed", seed}).code, 0);
  };
  make("few", "30", "1"), make("many", "60", "1"), make("other", "30", "2");
  EXPECT_EQ(run_python(R"(
import sys, h5py
def images(run, split):
    with h5py.File(f'{sys.argv[1]}/{run}/{split}-00000-of-00001.h5') as f: return {n: (l, x.tobytes()) for n, l, x in zip(f['names'], f['labels'], f['images'])}
few, many, other = (images(run, 'train') for run in ('few', 'many', 'other'))
assert len(few) == 30 and all(many[name] == few[name] for name in few)
assert not any(other[name][1] == few[name][1] for name in few)
assert images('few', 'val') == images('many', 'val')
assert not set(x for _, x in few.values()) & set(x for _, x in images('few', 'val').values())
print('ok')
)", {folder.path()}), "ok\n");
}

/// "A linear classifier stays below 60 %": least squares on all pixels, the best of several ridge terms on the validation images themselves.
TEST(Shapes, ALinearClassifierSeesLittle) {
  const ScratchFolder folder;
  ASSERT_EQ(convert_with({"shapes", folder.path(), "--train", "4000", "--val", "1000"}).code, 0);
  const std::string accuracy = run_python(R"(
import sys, h5py, numpy as np
def load(split):
    with h5py.File(f'{sys.argv[1]}/{split}-00000-of-00001.h5') as f: return f['images'][:, ::2, ::2].reshape(len(f['labels']), -1) / 128 - 1, f['labels'][:]
x, y = load('train')
v, w = load('val')
a, b = x.T @ x, x.T @ (np.eye(10)[y] - 0.1)
print(max(((v @ np.linalg.solve(a + ridge * np.eye(len(a)), b)).argmax(1) == w).mean() for ridge in (10, 100, 1000, 1e4)))
)", {folder.path()});
  EXPECT_LT(std::stod(accuracy), 0.6) << accuracy;
  EXPECT_GT(std::stod(accuracy), 0.1) << accuracy;
}

}  // namespace
}  // namespace lockstep
