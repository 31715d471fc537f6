// The order of samples and the threads that load them.
#include "data/loader.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/error.h"
#include "data/order.h"

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

TEST(Order, FlipsAreAFairCoin) {
  const Order order(9, 100);
  int flips = 0;
  for (int64_t p = 0; p < 10000; ++p) flips += order.flip_at(p);
  EXPECT_NEAR(flips, 5000, 200);
}

// Sample i is (i, flipped?) with label i % 7. Fails at the indices it is told to.
class FakeSource : public Source {
 public:
  explicit FakeSource(int64_t count, std::set<int64_t> bad = {}, int64_t most_bad = 0)
      : bad_(std::move(bad)), most_bad_(most_bad) {
    info_.kind = "fake";
    info_.count = count;
    info_.channels = 2;
    info_.height = info_.width = 1;
    info_.classes = 7;
  }
  void load(float* x, int32_t* label, int64_t index, bool flip,
            std::span<std::byte> scratch) const override {
    // The scratch is this thread's alone: a race here is for ThreadSanitizer to see.
    for (std::byte& byte : scratch) byte = std::byte{static_cast<unsigned char>(index)};
    if (bad_.contains(index)) fail(Exit::data, fmt::format("sample {} is bad", index));
    x[0] = static_cast<float>(index);
    x[1] = flip ? 1 : 0;
    *label = this->label(index);
    EXPECT_EQ(scratch.back(), std::byte{static_cast<unsigned char>(index)});
  }
  int32_t label(int64_t index) const override { return static_cast<int32_t>(index % 7); }
  int64_t most_bad() const override { return most_bad_; }
  int64_t scratch_bytes() const override { return 100; }
  int64_t heap_bytes() const override { return 0; }
  int64_t held_bytes() const override { return 0; }

 private:
  std::set<int64_t> bad_;
  int64_t most_bad_;
};

// A loader with memory of its own.
class Loading {
 public:
  Loading(const Source& source, const Loader::Options& options, int64_t first_step)
      : batch_(options.batch),
        bytes_(Loader::memory_bytes(source, options)),
        memory_(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(bytes_)))),
        loader_(source, options, first_step, {memory_.get(), static_cast<size_t>(bytes_)}) {}

  std::pair<std::vector<float>, std::vector<int32_t>> next(int64_t step) {
    std::vector<float> x(static_cast<size_t>(batch_ * 2));
    std::vector<int32_t> y(static_cast<size_t>(batch_));
    loader_.next(x, y, step);
    return {x, y};
  }
  Loader& loader() { return loader_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  int64_t batch_;
  int64_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
  Loader loader_;
};

TEST(Loader, NoSampleIsLostOrDoubledWhenBatchesStraddleEpochs) {
  const FakeSource source(23);
  Loading loading(source, {.seed = 4, .batch = 5, .flip = false, .threads = 3, .slots = 3}, 0);
  std::map<int, int> seen;
  for (int64_t step = 0; step < 23 * 3; ++step) {  // 15 epochs
    const auto [x, y] = loading.next(step);
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
  Loading reference(source, {.seed = 8, .batch = 16, .flip = true, .threads = 1, .slots = 1}, 0);
  Loading threads(source, {.seed = 8, .batch = 16, .flip = true, .threads = 4, .slots = 5}, 0);
  Loading late(source, {.seed = 8, .batch = 16, .flip = true, .threads = 2, .slots = 2}, 9);
  int flips = 0;
  for (int64_t step = 0; step < 40; ++step) {
    const auto wanted = reference.next(step);
    EXPECT_EQ(threads.next(step), wanted);
    if (step >= 9) {
      EXPECT_EQ(late.next(step), wanted);
    }
    for (int i = 0; i < 16; ++i) flips += wanted.first[2 * i + 1] == 1;
  }
  EXPECT_NEAR(flips, 320, 80);
}

TEST(Loader, ABatchLargerThanTheDataRepeatsIt) {
  const FakeSource source(3);
  Loading loading(source, {.seed = 1, .batch = 7, .flip = false, .threads = 2, .slots = 2}, 0);
  std::map<float, int> seen;
  for (int64_t step = 0; step < 3; ++step) {
    const auto [x, y] = loading.next(step);
    for (int i = 0; i < 7; ++i) ++seen[x[2 * i]];
  }
  for (const auto& [index, times] : seen) EXPECT_EQ(times, 7);
  EXPECT_EQ(seen.size(), 3u);
}

TEST(Loader, AnErrorComesWithItsOwnBatchAndStays) {
  const Order order(6, 64);
  const int64_t first = order.at(2 * 8 + 3), second = order.at(2 * 8 + 5);
  const FakeSource source(64, {first, second});
  for (int round = 0; round < 20; ++round) {
    Loading loading(source, {.seed = 6, .batch = 8, .flip = false, .threads = 4, .slots = 4}, 0);
    loading.next(0);
    loading.next(1);
    for (int again = 0; again < 2; ++again) {
      try {
        loading.next(2);
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
  Loading reference(source, {.seed = 8, .batch = 16, .flip = true, .threads = 1, .slots = 1}, 0);
  Loading threads(source, {.seed = 8, .batch = 16, .flip = true, .threads = 4, .slots = 5}, 0);
  Loading late(source, {.seed = 8, .batch = 16, .flip = true, .threads = 2, .slots = 2}, 9);
  const Order order(8, 101);
  std::vector<std::string> notes, threads_notes, late_notes;
  const auto gather = [](std::vector<std::string>& all, Loading& loading) {
    for (std::string& note : loading.loader().take_notes()) all.push_back(std::move(note));
  };
  for (int64_t step = 0; step < 40; ++step) {
    const auto wanted = reference.next(step);
    EXPECT_EQ(threads.next(step), wanted);
    if (step >= 9) {
      EXPECT_EQ(late.next(step), wanted);
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
    Loading loading(source, {.seed = 6, .batch = 8, .flip = false, .threads = 4, .slots = 4}, 0);
    loading.next(0);
    loading.next(1);
    for (int again = 0; again < 2; ++again) {
      try {
        loading.next(2);
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
  Loading loading(source, {.seed = 6, .batch = 4, .flip = false, .threads = 2, .slots = 2}, 0);
  EXPECT_THROW(loading.next(0), Error);
}

TEST(Loader, ABatchGoesOnlyWhereItFits) {
  const FakeSource source(10);
  Loading loading(source, {.seed = 1, .batch = 2, .flip = false, .threads = 1, .slots = 2}, 0);
  std::vector<float> x(4);
  std::vector<int32_t> y(2);
  EXPECT_THROW(loading.loader().next(std::span(x).first(3), y, 0), Bug);
  EXPECT_THROW(loading.loader().next(x, std::span(y).first(1), 0), Bug);
  std::vector<float> more(5);
  EXPECT_THROW(loading.loader().next(more, y, 0), Bug);
  loading.loader().next(x, y, 0);
}

TEST(Loader, StopsAtOnceWithBatchesUnread) {
  const FakeSource source(1000);
  for (int round = 0; round < 100; ++round) {
    Loading loading(source, {.seed = 1, .batch = 64, .flip = true, .threads = 3, .slots = 3},
                    round);
    if (round % 2 == 0) loading.next(round);
  }
}

TEST(Loader, StepsOutOfOrderAreABug) {
  const FakeSource source(10);
  Loading loading(source, {.seed = 1, .batch = 2, .flip = false, .threads = 1, .slots = 2}, 3);
  EXPECT_THROW(loading.next(2), Bug);
  EXPECT_THROW(loading.next(4), Bug);
  loading.next(3);
  loading.next(4);
}

}  // namespace
}  // namespace ebb
