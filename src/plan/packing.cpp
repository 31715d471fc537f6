#include "plan/packing.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "base/rng.h"

namespace ebb {

namespace {

// Places blocks in the given order, each at the lowest offset that is free for its whole life.
class Placer {
 public:
  Placer(const std::vector<LiveBlock>& blocks, const PackingSpace& space)
      : blocks_(blocks), start_(space.start) {
    limits_.piece_bytes = space.piece_bytes;
    int ops = 0;
    for (const LiveBlock& block : blocks) ops = std::max(ops, block.life.end);
    buckets_.resize(ops / kBucket + 1);
  }

  Packing place(const std::vector<int>& order) {
    Packing made{std::vector<int64_t>(blocks_.size(), 0), 0};
    all_.clear();
    for (Row& bucket : buckets_) bucket.clear();
    // Only long ones meet all others.
    const auto last_long =
        std::find_if(order.rbegin(), order.rend(), [&](int i) { return is_long(i); }).base() -
        order.begin();
    for (int64_t n = 0; n < std::ssize(order); ++n) {
      const int i = order[n];
      work_ += n + 1;
      const int64_t offset = lowest_free(i);
      made.offsets[i] = offset;
      made.peak = std::max(made.peak, offset + blocks_[i].size);
      const Placed placed{offset, offset + blocks_[i].size, blocks_[i].life};
      if (n < last_long) insert(all_, placed);
      for (int b = first_bucket(i); b <= last_bucket(i); ++b) insert(buckets_[b], placed);
    }
    return made;
  }

  int64_t work() const { return work_; }          // as if every block were compared with all others
  int64_t compared() const { return compared_; }  // that were

 private:
  static constexpr int kBucket = 64;      // ops
  static constexpr int kLongBuckets = 4;  // a block that lives in more is a long one

  struct Placed {
    int64_t begin, end;
    Lifetime life;
  };
  using Row = std::vector<Placed>;  // sorted by where they begin

  // What is left of a row that is gone through.
  struct Rest {
    const Placed *next, *end;
  };

  int first_bucket(int i) const { return blocks_[i].life.begin / kBucket; }
  int last_bucket(int i) const { return (blocks_[i].life.end - 1) / kBucket; }
  bool is_long(int i) const { return last_bucket(i) - first_bucket(i) >= kLongBuckets; }

  static void insert(Row& row, const Placed& placed) {
    const auto at = std::upper_bound(row.begin(), row.end(), placed.begin,
                                     [](int64_t o, const Placed& p) { return o < p.begin; });
    row.insert(at, placed);
  }

  // A short block meets those in its few buckets, a long one may meet any: in the order of their
  // offsets, whichever row they are in.
  int64_t lowest_free(int i) {
    std::array<Rest, kLongBuckets> rows;
    int count = 0;
    const auto add = [&](const Row& row) {
      if (!row.empty()) rows[count++] = {row.data(), row.data() + row.size()};
    };
    if (is_long(i)) {
      add(all_);
    } else {
      for (int b = first_bucket(i); b <= last_bucket(i); ++b) add(buckets_[b]);
    }
    const int64_t size = blocks_[i].size;
    const Lifetime life = blocks_[i].life;
    const auto allowed = [&](int64_t at) {
      return limits_.within_a_piece(start_ + at, size) - start_;
    };
    for (int64_t offset = allowed(0);;) {
      Rest* lowest = nullptr;
      for (int r = 0; r < count; ++r) {
        Rest& row = rows[r];
        while (row.next != row.end && !in_the_way(*row.next, life, offset)) {
          ++row.next;
          ++compared_;
        }
        if (row.next == row.end) continue;
        if (lowest == nullptr || row.next->begin < lowest->next->begin) lowest = &row;
      }
      if (lowest == nullptr || lowest->next->begin >= offset + size) return offset;
      ++compared_;
      offset = std::max(offset, allowed(lowest->next++->end));
    }
  }

  static bool in_the_way(const Placed& placed, const Lifetime& life, int64_t offset) {
    return placed.end > offset && placed.life.begin < life.end && life.begin < placed.life.end;
  }

  const std::vector<LiveBlock>& blocks_;
  const int64_t start_;
  Limits limits_;
  int64_t work_ = 0, compared_ = 0;
  Row all_;
  std::vector<Row> buckets_;  // by time: what is placed there
};

}  // namespace

namespace {

// Live bytes at each op.
std::vector<int64_t> live_bytes(const std::vector<LiveBlock>& blocks) {
  int last = 0;
  for (const LiveBlock& block : blocks) last = std::max(last, block.life.end);
  std::vector<int64_t> live(last + 1, 0);
  for (const LiveBlock& block : blocks) {
    if (block.life.empty()) continue;
    live[block.life.begin] += block.size;
    live[block.life.end] -= block.size;
  }
  for (int op = 1; op <= last; ++op) live[op] += live[op - 1];
  return live;
}

}  // namespace

int fullest_op(const std::vector<LiveBlock>& blocks) {
  const std::vector<int64_t> live = live_bytes(blocks);
  return static_cast<int>(std::max_element(live.begin(), live.end()) - live.begin());
}

int64_t liveness_bound(const std::vector<LiveBlock>& blocks) {
  const std::vector<int64_t> live = live_bytes(blocks);
  return *std::max_element(live.begin(), live.end());
}

namespace {

class Search {
 public:
  Search(const std::vector<LiveBlock>& blocks, const PackingSpace& space)
      : blocks_(blocks),
        placer_(blocks, space),
        work_(kWork / space.haste),
        bound_(liveness_bound(blocks)),
        peak_op_(fullest_op(blocks)) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (!blocks[i].life.empty() && blocks[i].size > 0) all_.push_back(static_cast<int>(i));
    }
  }

  Packing run() {
    const auto size = [&](int i) { return blocks_[i].size; };
    const auto span = [&](int i) -> int64_t { return blocks_[i].life.end - blocks_[i].life.begin; };
    attempt(sorted([&](int i) { return std::pair(size(i), span(i)); }));
    attempt(sorted([&](int i) { return std::pair(span(i), size(i)); }));
    attempt(sorted([&](int i) { return size(i) * span(i); }));
    attempt(sorted([&](int i) { return -blocks_[i].life.begin; }));
    attempt(sorted([&](int i) { return blocks_[i].life.end; }));
    // A training step is nearly a stack: what is alive at its fullest op, piled up in order of
    // birth, leaves the top free for what comes and goes before and after.
    const auto piled = [&](auto rest) {
      return sorted([&, rest](int i) {
        const bool at_peak = blocks_[i].life.begin <= peak_op_ && peak_op_ < blocks_[i].life.end;
        return at_peak ? std::tuple<bool, int64_t, int64_t>(true, -blocks_[i].life.begin, span(i))
                       : std::tuple<bool, int64_t, int64_t>(false, rest(i), size(i));
      });
    };
    attempt(piled(size));
    attempt(piled(span));
    attempt(piled([&](int i) -> int64_t { return size(i) * span(i); }));
    attempt(piled([&](int i) -> int64_t { return -std::abs(blocks_[i].life.begin - peak_op_); }));
    squeaky_wheel();
    return std::move(best_);
  }

 private:
  bool done() const { return !best_order_.empty() && best_.peak <= bound_; }

  template <typename Key>
  std::vector<int> sorted(Key key) const {
    std::vector<int> order = all_;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) > key(b); });
    return order;
  }

  void attempt(std::vector<int> order) {
    if (done() || (!best_order_.empty() && placer_.compared() > kCompared)) return;
    Packing made = placer_.place(order);
    if (best_order_.empty() || made.peak < best_.peak) {
      best_ = std::move(made);
      best_order_ = std::move(order);
    }
  }

  // Blocks that ended above the bound were placed too late: each moves forward by a random
  // distance, and all are placed again, whether that was better or not. Small blocks fit somewhere:
  // they come last, and are only placed when the large ones promise something.
  void squeaky_wheel() {
    if (done()) return;
    std::vector<int> large;
    std::vector<int> small;
    for (const int i : best_order_) {
      (blocks_[i].size * kSmall >= bound_ ? large : small).push_back(i);
    }
    std::stable_sort(small.begin(), small.end(),
                     [&](int a, int b) { return blocks_[a].size > blocks_[b].size; });
    const std::vector<int> start = large;
    for (uint32_t round = 0; !done() && placer_.work() < work_ && round < kRounds; ++round) {
      if (round % kRestart == kRestart - 1) {
        large = start;
      }
      const Packing made = placer_.place(large);
      if (made.peak < best_.peak) {
        std::vector<int> order = large;
        order.insert(order.end(), small.begin(), small.end());
        attempt(std::move(order));
      }
      move_forward(large, made, round);
    }
  }

  void move_forward(std::vector<int>& order, const Packing& made, uint32_t round) const {
    for (size_t place = 1; place < order.size(); ++place) {
      const int i = order[place];
      if (made.offsets[i] + blocks_[i].size <= bound_) continue;
      const uint32_t draw = philox(0, 0, 0, round, static_cast<uint32_t>(place))[0];
      const auto to = static_cast<int64_t>(draw % place);
      std::rotate(order.begin() + to, order.begin() + static_cast<int64_t>(place),
                  order.begin() + static_cast<int64_t>(place) + 1);
    }
  }

  static constexpr int64_t kWork = 200'000'000;      // comparisons: about a third of a second
  static constexpr int64_t kCompared = 300'000'000;  // of a very long program's first orders
  static constexpr uint32_t kRounds = 5000;
  static constexpr uint32_t kRestart = 100;
  static constexpr int64_t kSmall = 2000;  // a small block is below 1/kSmall of the bound

  const std::vector<LiveBlock>& blocks_;
  Placer placer_;
  const int64_t work_;
  const int64_t bound_;
  const int peak_op_;
  std::vector<int> all_;
  Packing best_;
  std::vector<int> best_order_;
};

}  // namespace

Packing pack(const std::vector<LiveBlock>& blocks, const PackingSpace& space) {
  return Search(blocks, space).run();
}

}  // namespace ebb
