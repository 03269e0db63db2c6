// sampler: every image once an epoch, whatever the ranks; the last batch; what a window does to a batch's classes.
#include "data/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "base/error.hpp"
#include "data/loader.hpp"

namespace lockstep {
namespace {

using Ids = std::vector<std::int64_t>;

DataConfig config_with(const std::string& shuffle, const std::string& last_batch = "keep", std::int64_t window = 65536) {
  DataConfig config;
  config.path = "folder", config.shuffle = shuffle, config.last_batch = last_batch, config.shuffle_window = window;
  return config;
}
Ids one_to(std::int64_t n) {
  Ids ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}
Ids sorted(Ids ids) {
  std::ranges::sort(ids);
  return ids;
}

TEST(Sampler, AnOrderHoldsEveryImageOnce) {
  for (const std::int64_t images : {1, 2, 3, 63, 64, 65, 129, 1000, 4097, 20000})
    for (const char* shuffle : {"full", "window", "none"})
      for (const std::int64_t window : {1, 7, 64, 640, 10000, 1 << 20}) {
        SCOPED_TRACE(text_of(images, " images, ", shuffle, " ", window));
        const Sampler sampler(config_with(shuffle, "keep", window), images, 16, 3);
        for (const std::int64_t epoch : {0, 1, 77}) EXPECT_EQ(sorted(sampler.order(epoch)), one_to(images));
      }
}

TEST(Sampler, TheOrderFollowsFromSeedAndEpochAlone) {
  for (const char* shuffle : {"full", "window"}) {
    const auto config = config_with(shuffle, "keep", 128);
    const Sampler a(config, 1000, 16, 5), b(config, 1000, 37, 5), other_seed(config, 1000, 16, 6);
    const Ids first = a.order(4);
    a.order(5), a.order(6), a.order(7);   // pushes epoch 4 out of what is kept
    EXPECT_EQ(a.order(4), first);
    EXPECT_EQ(b.order(4), first);
    EXPECT_NE(a.order(5), first);
    EXPECT_NE(other_seed.order(4), first);
  }
  EXPECT_EQ(Sampler(config_with("none"), 1000, 16, 5).order(9), one_to(1000));
}

// chi-squared of "image i stands at place p" over 4000 epochs: 15 * 15 degrees of freedom, standard deviation sqrt(2 * 225) = 21.
TEST(Sampler, AFullPermutationAndAWindowThatSpansTheSetPutEveryImageEverywhereAlike) {
  for (const char* shuffle : {"full", "window"}) {
    constexpr int images = 16, epochs = 4000;
    const Sampler sampler(config_with(shuffle), images, 4, 11);
    std::vector<double> seen(images * images);
    for (int epoch = 0; epoch < epochs; ++epoch) {
      const Ids order = sampler.order(epoch);
      for (std::size_t p = 0; p < images; ++p) seen[p * images + static_cast<std::size_t>(order[p])] += 1;
    }
    const double expected = static_cast<double>(epochs) / images;
    double chi_squared = 0;
    for (const double count : seen) chi_squared += (count - expected) * (count - expected) / expected;
    EXPECT_NEAR(chi_squared, 225, 4 * 21) << shuffle;
  }
}

TEST(Sampler, PartsOfRanksAndMicroBatchesJoinedAreTheGlobalBatchForAnyNumberOfThem) {
  for (const std::int64_t images : {1, 7, 100, 257})
    for (const std::int64_t batch : {1, 5, 32, 300})
      for (const char* last : {"keep", "drop", "pad"}) {
        if (std::string(last) == "drop" && batch > images) continue;
        const Sampler sampler(config_with("full", last), images, batch, 1);
        const std::int64_t steps = sampler.steps_per_epoch();
        for (const int ranks : {1, 2, 3, 8})
          for (const std::int64_t micro_batches : {1, 3}) {
            SCOPED_TRACE(text_of(images, " images, batch ", batch, " ", last, ", ", ranks, " ranks, ", micro_batches, " micro-batches"));
            for (std::int64_t step = 0; step < 2 * steps + 1; ++step) {
              const std::int64_t count = sampler.global_count(step % steps);
              const Ids whole = sampler.ids(step / steps, step % steps, {0, count});
              Ids joined;
              for (int rank = 0; rank < ranks; ++rank) {
                const WorkSource source = training_work(sampler, step, rank, ranks, micro_batches);
                std::int64_t of_rank = 0;
                for (std::int64_t part = 0; part < micro_batches; ++part) {
                  Work work;
                  ASSERT_TRUE(source(part, work));
                  ASSERT_EQ(work.epoch, step / steps);
                  ASSERT_EQ(work.step_in_epoch, step % steps);
                  ASSERT_EQ(work.part, part);
                  ASSERT_EQ(work.global_count, count);
                  ASSERT_EQ(work.positions.begin, static_cast<std::int64_t>(joined.size()));
                  ASSERT_EQ(work.positions.size(), static_cast<std::int64_t>(work.ids.size()));
                  joined.insert(joined.end(), work.ids.begin(), work.ids.end());
                  of_rank += work.positions.size();
                }
                ASSERT_TRUE(of_rank == count / ranks || of_rank == (count + ranks - 1) / ranks);
              }
              ASSERT_EQ(joined, whole);
            }
          }
      }
}

TEST(Sampler, TheLastBatchIsKeptDroppedOrFilledUpFromTheStartOfTheSameOrder) {
  for (const std::int64_t images : {1, 7, 10, 12})
    for (const std::int64_t batch : {1, 4, 5, 23}) {
      SCOPED_TRACE(text_of(images, " images, batch ", batch));
      const auto taken = [&](const char* last) {
        const Sampler sampler(config_with("full", last), images, batch, 2);
        Ids all;
        for (std::int64_t step = 0; step < sampler.steps_per_epoch(); ++step) {
          const Ids ids = sampler.ids(3, step, {0, sampler.global_count(step)});
          all.insert(all.end(), ids.begin(), ids.end());
        }
        return all;
      };
      const Ids order = Sampler(config_with("full"), images, batch, 2).order(3);
      EXPECT_EQ(taken("keep"), order);
      Ids padded = order;
      for (std::size_t i = 0; padded.size() % static_cast<std::size_t>(batch) != 0; ++i) padded.push_back(padded[i]);   // padded[i]: again and again
      EXPECT_EQ(taken("pad"), padded);
      if (batch <= images) {
        const Ids dropped(order.begin(), order.begin() + images / batch * batch);
        EXPECT_EQ(taken("drop"), dropped);
      } else {
        EXPECT_THROW(taken("drop"), Error);
      }
    }
}

// How unequal batches are: the mean over batches and classes of (count - expected)^2, over what independent draws give.  1 - B/N for a permutation.
double dispersion(const Sampler& sampler, const std::vector<int>& label_of, int classes, std::int64_t batch, int epochs) {
  const double expected = static_cast<double>(batch) / classes;
  double squares = 0, terms = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const Ids order = sampler.order(epoch);
    for (std::size_t first = 0; first + static_cast<std::size_t>(batch) <= order.size(); first += static_cast<std::size_t>(batch)) {
      std::vector<double> count(static_cast<std::size_t>(classes));
      for (std::size_t i = first; i < first + static_cast<std::size_t>(batch); ++i) count[static_cast<std::size_t>(label_of[static_cast<std::size_t>(order[i])])] += 1;
      for (const double c : count) squares += (c - expected) * (c - expected), terms += 1;
    }
  }
  return squares / terms / (expected * (1 - 1.0 / classes));
}

// 50 batches x 100 classes x 4 epochs: the mean of 20000 squares, each of variance 2 or a little more, is known to 0.011; 0.05 is above 4 of it.
TEST(Sampler, UnderAWindowABatchHasTheClassesOfAFullPermutationIfTheSourceIsInRandomOrder) {
  constexpr int images = 102400, classes = 100;
  constexpr std::int64_t batch = 2048, window = 8192;   // blocks of 128
  std::vector<int> sorted_by_class(images);
  for (int i = 0; i < images; ++i) sorted_by_class[static_cast<std::size_t>(i)] = i / (images / classes);
  std::vector<int> converted = sorted_by_class;   // as the converter writes it
  std::shuffle(converted.begin(), converted.end(), std::mt19937(4));
  const Sampler full(config_with("full"), images, batch, 9), windowed(config_with("window", "keep", window), images, batch, 9);

  const double of_permutation = 1 - static_cast<double>(batch) / images;
  EXPECT_NEAR(dispersion(full, sorted_by_class, classes, batch, 4), of_permutation, 0.05);
  EXPECT_NEAR(dispersion(full, converted, classes, batch, 4), of_permutation, 0.05);
  EXPECT_NEAR(dispersion(windowed, converted, classes, batch, 4), of_permutation, 0.05);

  // A source still sorted by class: more unequal, and by no more than sampler.cpp says.
  const double of_blocks = dispersion(windowed, sorted_by_class, classes, batch, 4);
  EXPECT_GT(of_blocks, 2);
  EXPECT_LT(of_blocks, 1.05 + static_cast<double>(batch) * 128 / window);
}

TEST(Sampler, AWindowReadsOnlyItsOwnBlocks) {
  constexpr std::int64_t images = 10000, window = 640, block = 10;
  const Ids order = Sampler(config_with("window", "keep", window), images, 16, 1).order(0);
  const std::int64_t windows = images / window;
  for (std::int64_t w = 0; w < windows; ++w) {
    const Part part = part_of(images, w, windows);
    ASSERT_GE(part.size(), window);
    std::set<std::int64_t> blocks;
    for (std::int64_t p = part.begin; p < part.end; ++p) blocks.insert(order[static_cast<std::size_t>(p)] / block);
    EXPECT_LE(static_cast<std::int64_t>(blocks.size()), part.size() / block + 2);   // one may be shared with the window before, one with the next
  }
}

TEST(Sampler, ThreadsThatRunAheadOfEachOtherSeeTheSameOrders) {
  const Sampler sampler(config_with("full"), 5000, 100, 7);
  std::vector<Ids> wanted;
  for (int epoch = 0; epoch < 6; ++epoch) wanted.push_back(Sampler(config_with("full"), 5000, 100, 7).order(epoch));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const int epoch = (i / 50 + (t + i) % 2) % 6, step = i % 50;
        const Ids ids = sampler.ids(epoch, step, {0, 100});
        if (!std::equal(ids.begin(), ids.end(), wanted[static_cast<std::size_t>(epoch)].begin() + step * 100)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Sampler, EvaluationTakesEachImageOnceWithEquallyManyCallsOnEveryRank) {
  for (const std::int64_t images : {1, 2, 7, 16, 17, 100})
    for (const std::int64_t batch : {1, 3, 8, 200})
      for (int ranks = 1; ranks <= 5; ++ranks) {
        SCOPED_TRACE(text_of(images, " images, batch ", batch, ", ", ranks, " ranks"));
        Ids all;
        std::set<std::int64_t> calls;
        std::vector<std::int64_t> in_step(static_cast<std::size_t>(images));
        for (int rank = 0; rank < ranks; ++rank) {
          const WorkSource source = evaluation_work(images, batch, rank, ranks);
          Work work;
          std::int64_t call = 0;
          for (; source(call, work); ++call) {
            ASSERT_LE(static_cast<std::int64_t>(work.ids.size()), batch);
            in_step[static_cast<std::size_t>(call)] += static_cast<std::int64_t>(work.ids.size());
            all.insert(all.end(), work.ids.begin(), work.ids.end());
            if (rank == ranks - 1) {
              ASSERT_EQ(in_step[static_cast<std::size_t>(call)], work.global_count);
            }
          }
          ASSERT_FALSE(source(call + 1, work));
          calls.insert(call);
        }
        EXPECT_EQ(calls.size(), 1u);
        EXPECT_EQ(sorted(all), one_to(images));
      }
}

TEST(Sampler, WhatLeavesNoStepIsSaidWithAdvice) {
  const auto message = [](auto make) -> std::string {
    try {
      make();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), exit_bad_input);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message([] { Sampler(config_with("full", "drop"), 10, 16, 1); }).find("Lower data.global_batch"), std::string::npos);
  EXPECT_NE(message([] { Sampler(config_with("full"), 0, 16, 1); }).find("no images"), std::string::npos);
  EXPECT_NE(message([] { Sampler(config_with("full"), 10, 0, 1); }).find("data.global_batch = 0"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
