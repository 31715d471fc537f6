// The order of samples and the threads that load them.
#include "data/loader.h"

#include <map>

#include "loader_fixture.h"

namespace ebb {
namespace {

TEST(Order, EveryEpochIsAPermutation) {
  std::vector<int64_t> counts = {255, 256, 257, 1000, 4096, 60000};
  for (int64_t count = 1; count <= 70; ++count) counts.push_back(count);
  for (const int64_t count : counts) {
    const Order order(42, count);
    for (int64_t epoch = 0; epoch < (count > 1000 ? 2 : 5); ++epoch) {
      std::vector<bool> seen(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t index = order.at(epoch * count + i);
        ASSERT_GE(index, 0);
        ASSERT_LT(index, count);
        ASSERT_FALSE(seen[static_cast<size_t>(index)]) << count << " " << epoch << " " << i;
        seen[static_cast<size_t>(index)] = true;
      }
    }
  }
}

TEST(Order, EpochsAndSeedsDiffer) {
  const Order order(1, 1000), other(2, 1000);
  int same_epoch = 0, same_seed = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    same_epoch += order.at(i) == order.at(1000 + i);
    same_seed += order.at(i) == other.at(i);
    EXPECT_EQ(order.at(i), Order(1, 1000).at(i));
  }
  EXPECT_LT(same_epoch, 10);  // one is expected by chance
  EXPECT_LT(same_seed, 10);
}

TEST(Order, EverySampleIsEquallyOftenAtEveryPlace) {
  const Order order(5, 10);
  constexpr int kEpochs = 20000;
  std::vector<int> seen(100);
  for (int64_t p = 0; p < kEpochs * 10; ++p) ++seen[static_cast<size_t>(p % 10 * 10 + order.at(p))];
  double chi2 = 0;
  for (const int n : seen) chi2 += (n - kEpochs / 10.0) * (n - kEpochs / 10.0) / (kEpochs / 10.0);
  EXPECT_LT(chi2, 150);  // 81 degrees of freedom: about 81 +- 13
}

TEST(Order, NeighboursInTheDataAreNotNeighboursInTheOrder) {
  const Order order(3, 60000);
  double product = 0;
  for (int64_t p = 0; p + 1 < 60000; ++p) {
    product += (static_cast<double>(order.at(p)) / 60000 - 0.5) *
               (static_cast<double>(order.at(p + 1)) / 60000 - 0.5);
  }
  EXPECT_LT(std::abs(product / 60000 * 12), 0.02);  // correlation; 1/sqrt(60000) is 0.004
}

TEST(Loader, NoSampleIsLostOrDoubledWhenBatchesStraddleEpochs) {
  const FakeSource source(23);
  Loading loading(source, {.seed = 4, .batch = 5, .threads = 3, .ahead = 12}, 0);
  std::map<int, int> seen;
  for (int64_t step = 0; step < 23 * 3; ++step) {  // 15 epochs
    const auto [x, y] = loading.next();
    for (int i = 0; i < 5; ++i) {
      ++seen[static_cast<int>(x[2 * i])];
      EXPECT_EQ(y[i], static_cast<int>(x[2 * i]) % 7);
      EXPECT_EQ(x[2 * i + 1], 0);
      const int64_t done = step * 5 + i + 1;
      if (done % 23 == 0) {
        ASSERT_EQ(seen.size(), 23u);
        for (const auto& [index, times] : seen) ASSERT_EQ(times, done / 23) << index;
      }
    }
  }
}

TEST(Loader, ABatchIsAFunctionOfSeedAndStepAlone) {
  const FakeSource source(101);
  Loading reference(source, {.seed = 8, .batch = 16, .threads = 1, .ahead = 1}, 0);
  Loading threads(source, {.seed = 8, .batch = 16, .threads = 4, .ahead = 77}, 0);
  Loading late(source, {.seed = 8, .batch = 16, .threads = 2, .ahead = 29}, 9);
  for (int64_t step = 0; step < 40; ++step) {
    const auto wanted = reference.next();
    EXPECT_EQ(threads.next(step % 7 + 1), wanted);
    if (step >= 9) {
      EXPECT_EQ(late.next(3), wanted);
    }
  }
}

TEST(Loader, ABatchLargerThanTheDataRepeatsIt) {
  const FakeSource source(3);
  Loading loading(source, {.seed = 1, .batch = 7, .threads = 2, .ahead = 11}, 0);
  std::map<float, int> seen;
  for (int64_t step = 0; step < 3; ++step) {
    const auto [x, y] = loading.next();
    for (int i = 0; i < 7; ++i) ++seen[x[2 * i]];
  }
  for (const auto& [index, times] : seen) EXPECT_EQ(times, 7);
  EXPECT_EQ(seen.size(), 3u);
}

TEST(Loader, AnErrorComesWithItsOwnSampleAndStays) {
  const Order order(6, 64);
  const int64_t first = order.at(2 * 8 + 3), second = order.at(2 * 8 + 5);
  const FakeSource source(64, {first, second});
  for (int round = 0; round < 20; ++round) {
    Loading loading(source, {.seed = 6, .batch = 8, .threads = 4, .ahead = 29}, 0);
    loading.next();
    loading.next();
    EXPECT_EQ(loading.take(0, 3).first[4], static_cast<float>(order.at(2 * 8 + 2)));
    for (int again = 0; again < 2; ++again) {
      try {
        loading.take(3, 5);
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.what(), fmt::format("sample {} is bad", first));
      }
    }
  }
}

TEST(Order, StandInsAreDrawnFromAllSamples) {
  const Order order(11, 10);
  std::vector<int> seen(10);
  for (int64_t p = 0; p < 1000; ++p) {
    for (uint32_t attempt = 0; attempt < 10; ++attempt) {
      const int64_t index = order.stand_in(p, attempt);
      ASSERT_EQ(index, Order(11, 10).stand_in(p, attempt));
      ++seen.at(static_cast<size_t>(index));
    }
  }
  for (const int n : seen) EXPECT_NEAR(n, 1000, 150);
}

TEST(Loader, OthersStandInForBadSamplesWhateverTheThreadsAndTheStart) {
  const std::set<int64_t> bad = {3, 50, 99};
  const FakeSource source(101, bad, 3);
  Loading reference(source, {.seed = 8, .batch = 16, .threads = 1, .ahead = 13}, 0);
  Loading threads(source, {.seed = 8, .batch = 16, .threads = 4, .ahead = 77}, 0);
  Loading late(source, {.seed = 8, .batch = 16, .threads = 2, .ahead = 29}, 9);
  const Order order(8, 101);
  std::vector<std::string> notes, threads_notes, late_notes;
  const auto gather = [](std::vector<std::string>& all, Loading& loading) {
    for (std::string& note : loading.loader().take_notes()) all.push_back(std::move(note));
  };
  for (int64_t step = 0; step < 40; ++step) {
    const auto wanted = reference.next();
    EXPECT_EQ(threads.next(step % 7 + 1), wanted);
    if (step >= 9) {
      EXPECT_EQ(late.next(3), wanted);
    }
    gather(notes, reference);
    gather(threads_notes, threads);
    gather(late_notes, late);
    EXPECT_EQ(threads_notes, notes);
    for (int i = 0; i < 16; ++i) {
      const auto index = static_cast<int64_t>(wanted.first[2 * i]);
      EXPECT_FALSE(bad.contains(index));
      EXPECT_EQ(wanted.second[i], index % 7);
      const int64_t own = order.at(step * 16 + i);
      if (!bad.contains(own)) {
        EXPECT_EQ(index, own);
      }
    }
  }
  EXPECT_EQ(notes.size(), 3u);  // each once, though several epochs met it
  EXPECT_EQ(late_notes.size(), 3u);
}

TEST(Loader, MoreBadSamplesThanAllowedEndTheRunAtTheSameBatch) {
  const Order order(6, 64);
  std::set<int64_t> bad;
  for (const int64_t p : {3, 10, 2 * 8 + 5, 2 * 8 + 7}) bad.insert(order.at(p));
  const FakeSource source(64, bad, 2);
  for (int round = 0; round < 20; ++round) {
    Loading loading(source, {.seed = 6, .batch = 8, .threads = 4, .ahead = 29}, 0);
    loading.next();
    loading.next();
    loading.take(0, 5);
    for (int again = 0; again < 2; ++again) {
      try {
        loading.take(5, 3);
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Exit::data);
        const std::string text = error.what();
        EXPECT_NE(text.find("3 of 64 samples"), std::string::npos) << text;
        EXPECT_NE(error.hint().find(fmt::format("sample {}", order.at(3))), std::string::npos);
      }
    }
  }
}

TEST(Loader, WhereAllSamplesAreBadItEndsToo) {
  std::set<int64_t> all;
  for (int64_t i = 0; i < 30; ++i) all.insert(i);
  const FakeSource source(30, all, 3);
  Loading loading(source, {.seed = 6, .batch = 4, .threads = 2, .ahead = 5}, 0);
  EXPECT_THROW(loading.next(), Error);
}

TEST(Loader, StopsAtOnceWithBatchesUnread) {
  const FakeSource source(1000);
  for (int round = 0; round < 100; ++round) {
    Loading loading(source, {.seed = 1, .batch = 64, .threads = 3, .ahead = 189}, round);
    if (round % 2 == 0) loading.next();
  }
}

TEST(Loader, SamplesOutOfOrderAreABug) {
  const FakeSource source(10);
  Loading loading(source, {.seed = 1, .batch = 4, .threads = 1, .ahead = 2}, 3);
  EXPECT_THROW(loading.take(1, 1), Bug);
  EXPECT_THROW(loading.take(0, 5), Bug) << "more than the batch has";
  loading.take(0, 3);
  EXPECT_THROW(loading.take(0, 1), Bug);
  EXPECT_THROW(loading.take(3, 2), Bug);
  loading.take(3, 1);
  loading.take(0, 4);
  Loading share(source, {.seed = 1, .batch = 4, .threads = 1, .ahead = 2, .share = Share{1, 2}}, 0);
  EXPECT_THROW(share.take(1, 2), Bug) << "counted from the share's first on";
  share.take(0, 2);
  EXPECT_THROW(Loading(source, {.seed = 1, .batch = 4, .share = Share{3, 2}}, 0), Bug);
}

// Large samples do not pile up: a few megabytes of them wait, however large the batch is.
TEST(Loader, IsAheadByTheNextBatchOrAFewMegabytes) {
  const FakeSource small(10);
  EXPECT_EQ(Loader::worth_ahead(small, 256, 1), 256);
  EXPECT_EQ(Loader::worth_ahead(small, 1, 1), 1);
  struct Photos : FakeSource {
    Photos() : FakeSource(1000) {
      info_.channels = 3;
      info_.height = info_.width = 256;
      info_.type = DType::u8;
    }
  };
  const Photos photos;
  const int64_t ahead = Loader::worth_ahead(photos, 256, 2);
  EXPECT_LE(ahead * photos.sample_bytes(), 4 << 20);
  EXPECT_GE(ahead, 3) << "every thread has work while one sample waits";
  EXPECT_LE(Loader::memory_bytes(photos, {.batch = 256, .threads = 2, .ahead = ahead}), 5 << 20);
}

}  // namespace
}  // namespace ebb
