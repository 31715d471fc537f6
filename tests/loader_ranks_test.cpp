// Batches that several ranks load, each its share.
#include <mutex>

#include "loader_fixture.h"

namespace ebb {
namespace {

// Remembers which samples were asked for.
class WatchedSource : public FakeSource {
 public:
  using FakeSource::FakeSource;
  void load(std::byte* values, int32_t* label, int64_t index,
            std::span<std::byte> scratch) const override {
    {
      const std::lock_guard lock(mutex_);
      asked_.insert(index);
    }
    FakeSource::load(values, label, index, scratch);
  }
  std::set<int64_t> asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::set<int64_t> asked_;
};

TEST(Loader, TheSharesOfRanksAreTogetherTheBatchesOfOne) {
  const std::set<int64_t> bad = {3, 50, 99};
  const FakeSource source(101, bad, 3);
  constexpr int64_t kBatch = 16, kStart = 2;
  for (const int ranks : {1, 2, 3}) {
    Loading alone(source, {.seed = 8, .batch = kBatch, .threads = 2, .ahead = 13}, kStart);
    std::vector<std::unique_ptr<Loading>> shares;
    for (int r = 0; r < ranks; ++r) {
      const Loader::Options options{.seed = 8,
                                    .batch = kBatch,
                                    .threads = 1 + r,
                                    .ahead = 5,
                                    .share = RankPlace{ranks, 1, r}.share(kBatch)};
      shares.push_back(std::make_unique<Loading>(source, options, kStart));
    }
    for (int64_t step = 0; step < 30; ++step) {
      Loading::Samples all;
      for (auto& share : shares) {
        const auto [x, y] = share->next(step % 4 + 1);
        all.first.insert(all.first.end(), x.begin(), x.end());
        all.second.insert(all.second.end(), y.begin(), y.end());
      }
      EXPECT_EQ(all, alone.next()) << ranks << " ranks, step " << step;
    }
  }
}

// Not even ahead of time. Where its own is bad, it reads what stands in for it.
TEST(Loader, ARankReadsNothingOfAnothersShare) {
  constexpr int64_t kBatch = 6, kSteps = 4, kAhead = 7;
  const Order order(9, 1000);
  const std::set<int64_t> bad = {order.at(7), order.at(10)};
  for (int r = 0; r < 3; ++r) {
    const Share share = RankPlace{3, 1, r}.share(kBatch);
    const WatchedSource source(1000, bad, 5);
    {
      Loading loading(
          source, {.seed = 9, .batch = kBatch, .threads = 2, .ahead = kAhead, .share = share}, 0);
      for (int64_t step = 0; step < kSteps; ++step) loading.next();
    }
    std::set<int64_t> own;
    for (int64_t step = 0; step < kSteps + kAhead; ++step) {
      for (int64_t i = 0; i < share.count; ++i) {
        const int64_t position = step * kBatch + share.first + i;
        own.insert(order.at(position));
        if (bad.contains(order.at(position))) own.insert(order.stand_in(position, 0));
      }
    }
    for (const int64_t index : source.asked()) EXPECT_TRUE(own.contains(index)) << index;
  }
}

}  // namespace
}  // namespace ebb
