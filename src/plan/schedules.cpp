// The persistent schedule of Rotor (Beaumont et al.), with several keep-sets a block as in
// Rockmate. Blocks count as alike here: their number is what matters. What a schedule really takes
// is found afterwards, by estimate() and by packing it.
#include "plan/schedules.h"

#include <algorithm>
#include <limits>

namespace ebb {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Solver {
 public:
  Solver(const Profile& p, int64_t depth) : p_(p), depth_(static_cast<int>(depth)) {
    const std::vector<Stage>& forward = p.forward[0];
    const std::vector<Stage>& backward = p.backward[0];
    const auto richest = static_cast<double>(forward[0].delta) * static_cast<double>(depth);
    unit_ = std::max({1.0, static_cast<double>(p.input_bytes) / 2, richest / kMostSlots});
    int64_t tallest = p.turn.peak;
    for (size_t o = 0; o < p.options.size(); ++o) {
      const int64_t saved = forward[o].delta - p.input_bytes;
      options_.push_back({slots(saved), slots(forward[o].delta), slots(forward[o].peak),
                          slots(saved + backward[o].peak), forward[o].seconds,
                          backward[o].seconds});
      tallest = std::max({tallest, forward[o].peak, saved + backward[o].peak});
    }
    input_ = slots(p.input_bytes);
    turn_peak_ = slots(p.turn.peak);
    memory_ = options_[0].forward * depth_ + slots(tallest) + 1;
    solve();
  }

  std::vector<Schedule> all() const {
    std::vector<Schedule> found;
    double last = kNever;
    for (int m = 0; m <= memory_; ++m) {
      const Cell& best = cell(true, m, depth_);
      if (best.seconds >= last) continue;
      last = best.seconds;
      Schedule made;
      write(made, true, m, depth_, 0);
      found.push_back(std::move(made));
    }
    return found;
  }

 private:
  static constexpr double kMostSlots = 800;
  static constexpr int kMostSplits = 32;

  struct Option {
    int saved, forward, forward_peak, backward_peak;  // slots
    double forward_seconds, backward_seconds;
  };
  struct Cell {
    double seconds = kNever;
    int16_t keep = -1;   // option of the first block, or
    int16_t split = -1;  // blocks gone through before the first input that is stored
  };

  int slots(int64_t bytes) const {
    return static_cast<int>((static_cast<double>(bytes) + unit_ - 1) / unit_);
  }
  // top: up to the model's end and back; otherwise up to where the gradient is known already.
  const Cell& cell(bool top, int memory, int blocks) const {
    return (top ? top_ : inner_)[static_cast<size_t>(memory) * (depth_ + 1) + blocks];
  }
  Cell& cell(bool top, int memory, int blocks) {
    return const_cast<Cell&>(static_cast<const Solver*>(this)->cell(top, memory, blocks));
  }
  double seconds(bool top, int memory, int blocks) const {
    return memory < 0 ? kNever : cell(top, memory, blocks).seconds;
  }

  void solve() {
    top_.resize(static_cast<size_t>(memory_ + 1) * (depth_ + 1));
    inner_.resize(top_.size());
    for (int m = 0; m <= memory_; ++m) {
      if (m >= turn_peak_) cell(true, m, 0).seconds = p_.turn.seconds;
      for (const bool top : {false, true}) {
        for (int n = 1; n <= depth_; ++n) solve(top, m, n);
      }
    }
  }

  void solve(bool top, int m, int n) {
    Cell best;
    const Option& nothing = options_.back();
    if (!top && n == 1) {
      if (m >= nothing.backward_peak) best = {nothing.backward_seconds, 0, -1};
      cell(top, m, n) = best;
      return;
    }
    for (size_t o = 0; o + 1 < options_.size(); ++o) {
      const Option& option = options_[o];
      if (m < option.forward_peak || m < option.backward_peak) continue;
      const double t = option.forward_seconds + option.backward_seconds +
                       seconds(top, m - option.forward, n - 1);
      if (t < best.seconds) best = {t, static_cast<int16_t>(o), -1};
    }
    const int most = top ? n : n - 1;
    const int step = std::max(1, most / kMostSplits);
    for (int j = 1; j <= most; j += step) {
      if (m < nothing.forward_peak + (j > 1 ? input_ : 0)) break;
      const double t =
          j * nothing.forward_seconds + seconds(top, m - input_, n - j) + seconds(false, m, j);
      if (t < best.seconds) best = {t, -1, static_cast<int16_t>(j)};
    }
    cell(top, m, n) = best;
  }

  void write(Schedule& to, bool top, int m, int n, int first) const {
    if (n == 0) {
      if (top) to.push_back({Action::Kind::turn, 0, {}});
      return;
    }
    const Cell& best = cell(top, m, n);
    if (best.split > 0) {
      for (int i = 0; i < best.split; ++i) to.push_back({Action::Kind::forward, first + i, {}});
      write(to, top, m - input_, n - best.split, first + best.split);
      write(to, false, m, best.split, first);
      return;
    }
    if (top || n > 1) {
      to.push_back({Action::Kind::forward, first, p_.options[best.keep]});
      write(to, top, m - options_[best.keep].forward, n - 1, first + 1);
    }
    to.push_back({Action::Kind::backward, first, {}});
  }

  const Profile& p_;
  const int depth_;
  double unit_ = 1;  // bytes of a slot
  int input_ = 0, turn_peak_ = 0, memory_ = 0;
  std::vector<Option> options_;
  std::vector<Cell> top_, inner_;
};

}  // namespace

std::vector<Schedule> schedules(const Profile& profile, int64_t depth) {
  return Solver(profile, depth).all();
}

}  // namespace ebb
