#include "plan/packing.h"

#include <algorithm>
#include <numeric>

namespace ebb {

namespace {

// Places blocks in the given order, each at the lowest offset that is free for its whole life.
class Placer {
 public:
  explicit Placer(const std::vector<LiveBlock>& blocks) : blocks_(blocks) {}

  Packing place(const std::vector<int>& order) {
    Packing made{std::vector<int64_t>(blocks_.size(), 0), 0};
    std::vector<int> placed;  // sorted by offset
    placed.reserve(order.size());
    for (const int i : order) {
      const LiveBlock& block = blocks_[i];
      int64_t offset = 0;
      for (const int j : placed) {
        if (!overlap(block.life, blocks_[j].life)) continue;
        if (made.offsets[j] >= offset + block.size) break;
        offset = std::max(offset, made.offsets[j] + blocks_[j].size);
      }
      work_ += static_cast<int64_t>(placed.size()) + 1;
      made.offsets[i] = offset;
      made.peak = std::max(made.peak, offset + block.size);
      const auto at = std::upper_bound(placed.begin(), placed.end(), offset, [&](int64_t o, int j) {
        return o < made.offsets[j];
      });
      placed.insert(at, i);
    }
    return made;
  }

  int64_t work() const { return work_; }

 private:
  static bool overlap(const Lifetime& a, const Lifetime& b) {
    return a.begin < b.end && b.begin < a.end;
  }
  const std::vector<LiveBlock>& blocks_;
  int64_t work_ = 0;
};

int64_t span(const Lifetime& life) { return life.end - life.begin; }

}  // namespace

int64_t liveness_bound(const std::vector<LiveBlock>& blocks) {
  int last = 0;
  for (const LiveBlock& block : blocks) last = std::max(last, block.life.end);
  std::vector<int64_t> change(last + 1, 0);
  for (const LiveBlock& block : blocks) {
    if (block.life.empty()) continue;
    change[block.life.begin] += block.size;
    change[block.life.end] -= block.size;
  }
  int64_t live = 0;
  int64_t most = 0;
  for (const int64_t delta : change) most = std::max(most, live += delta);
  return most;
}

Packing pack(const std::vector<LiveBlock>& blocks) {
  const int64_t bound = liveness_bound(blocks);
  std::vector<int> order;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!blocks[i].life.empty() && blocks[i].size > 0) order.push_back(static_cast<int>(i));
  }
  Placer placer(blocks);
  Packing best;
  std::vector<int> best_order;
  const auto attempt = [&](std::vector<int> candidate) {
    Packing made = placer.place(candidate);
    const bool better = best_order.empty() || made.peak < best.peak;
    if (better) {
      best = std::move(made);
      best_order = std::move(candidate);
    }
    return better;
  };
  const auto sorted = [&](auto key) {
    std::vector<int> by = order;
    std::stable_sort(by.begin(), by.end(), [&](int a, int b) { return key(a) > key(b); });
    return by;
  };
  const auto size_of = [&](int i) { return blocks[i].size; };
  const auto span_of = [&](int i) { return span(blocks[i].life); };

  attempt(sorted([&](int i) { return std::pair(size_of(i), span_of(i)); }));
  if (best.peak > bound) attempt(sorted([&](int i) { return std::pair(span_of(i), size_of(i)); }));
  if (best.peak > bound) attempt(sorted([&](int i) { return size_of(i) * span_of(i); }));
  if (best.peak > bound) attempt(sorted([&](int i) { return -blocks[i].life.begin; }));
  if (best.peak > bound) attempt(sorted([&](int i) { return blocks[i].life.end; }));

  // The block that reaches highest was placed too late: move it forward, by ever larger jumps.
  constexpr int64_t kWork = 150'000'000;  // about a quarter of a second
  int failures = 0;
  while (best.peak > bound && placer.work() < kWork && failures < 64) {
    const auto top = std::find_if(best_order.begin(), best_order.end(), [&](int i) {
      return best.offsets[i] + blocks[i].size == best.peak;
    });
    const auto place = top - best_order.begin();
    const auto to = place - std::min<int64_t>(place, int64_t{1} << std::min(failures, 20));
    std::vector<int> candidate = best_order;
    std::rotate(candidate.begin() + to, candidate.begin() + place, candidate.begin() + place + 1);
    failures = attempt(std::move(candidate)) ? 0 : failures + 1;
    if (to == 0 && failures > 0) break;
  }
  return best;
}

}  // namespace ebb
