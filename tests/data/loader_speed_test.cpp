// What a batch costs the host: run by hand on a quiet machine.
//   build/cpu/tests/data_tests --gtest_also_run_disabled_tests --gtest_filter='LoaderSpeed.*'
// Counts CPU time, so that other processes hardly matter: of the thread that asks for batches, which is what a step waits for at least, and of
// all threads, which the readers share.
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>

#include "data/loader.hpp"
#include "support/data_sets.hpp"

namespace lockstep {
namespace {

double cpu_microseconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

TEST(LoaderSpeed, DISABLED_BatchesOfCifarAndOfImageNet) {
  struct Kind {
    const char* name;
    const char* train;
    std::int64_t stored, size, images;
  };
  Device device;
  for (const Kind& kind : {Kind{"32 x 32, pad_crop", "pad_crop", 32, 32, 8192}, Kind{"256 x 256 to 224, random_resized_crop", "random_resized_crop", 256, 224, 512}}) {
    ScratchFolder folder;
    const TestImage image = test_image(kind.stored, kind.stored, 1);
    write_split(folder.path(), "train", std::vector<TestImage>(static_cast<std::size_t>(kind.images), image), 10, 2);
    const Dataset dataset(folder.path(), "train");
    AugmentConfig config;
    config.train = kind.train, config.size = kind.size, config.flip = true;
    const Augment augment(config, true, 1, kind.stored, kind.stored, {0.5}, {0.5});
    const ImageCache images(device, dataset, CachePlace::device, 2, {});
    for (const ImageCache* cache : {static_cast<const ImageCache*>(nullptr), &images})
      for (const std::int64_t batch : {128, 512}) {
        const Sampler sampler(DataConfig{}, dataset.size(), batch, 1);
        Loader loader(device, dataset, augment, training_work(sampler, 0, 0, 1, 1), 2, 3, batch, {}, cache);
        const int batches = static_cast<int>(kind.size == 32 ? 262144 / batch : 8192 / batch);
        for (int i = 0; i < 5; ++i) loader.next();
        const double asking = cpu_microseconds(CLOCK_THREAD_CPUTIME_ID), all = cpu_microseconds(CLOCK_PROCESS_CPUTIME_ID), start = stopwatch_seconds();
        for (int i = 0; i < batches; ++i) loader.next();
        const double each = 1.0 / batches, spent = (cpu_microseconds(CLOCK_PROCESS_CPUTIME_ID) - all) * each;
        std::printf("%-38s %-7s batch %3d: %6.1f us asking, %8.1f us of all threads (%9.0f img/s a core), %9.0f img/s with 2 readers\n", kind.name, cache ? "cached" : "read",
                    static_cast<int>(batch), (cpu_microseconds(CLOCK_THREAD_CPUTIME_ID) - asking) * each, spent, 1e6 * static_cast<double>(batch) / spent,
                    static_cast<double>(batch * batches) / (stopwatch_seconds() - start));
      }
  }
}

}  // namespace
}  // namespace lockstep
