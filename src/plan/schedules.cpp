// The persistent schedule of Rotor (Beaumont et al.), with several keep-sets a block as in
// Rockmate. Blocks count as alike here: their number is what matters. What a schedule really takes
// is found afterwards, by estimate() and by packing it.
#include "plan/schedules.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace ebb {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kMostSlots = 800;
constexpr int kMostSplits = 32;
constexpr int64_t kMostGroups = 100;

// Bytes of a slot: those that show one block's input, and those that hold everything in kMostSlots.
double input_unit(const Profile& p) {
  return std::max(1.0, static_cast<double>(p.input_bytes) / 2);
}
double whole_unit(const Profile& p, int64_t depth) {
  const auto richest = static_cast<double>(p.forward[0][0].delta) * static_cast<double>(depth);
  return std::max(input_unit(p), richest / kMostSlots);
}

class Solver {
 public:
  // `unit`: bytes of a slot. Only what fits into kMostSlots above the tallest stage is looked at,
  // unless `whole`.
  Solver(const Profile& p, int64_t depth, double unit, bool whole)
      : p_(p),
        depth_(static_cast<int>(depth)),
        group_(static_cast<int>((depth + kMostGroups - 1) / kMostGroups)),
        groups_((depth_ + group_ - 1) / group_),
        unit_(unit) {
    int64_t tallest = p.turn.peak;
    for (size_t o = 0; o < p.options.size(); ++o) {
      options_.push_back(option(o));
      tallest = std::max({tallest, forward_peak(o), backward_peak(o)});
    }
    input_ = slots(p.input_bytes);
    turn_peak_ = slots(p.turn.peak);
    memory_ = whole ? options_[0].forward * groups_ + slots(tallest) + 1
                    : slots(tallest) + static_cast<int>(kMostSlots);
    solve();
  }

  void visit(const std::function<void(const Schedule&)>& visitor) const {
    double last = kNever;
    Schedule made;
    for (int m = 0; m <= memory_; ++m) {
      const Cell& best = cell(true, m, groups_);
      if (best.seconds >= last) continue;
      last = best.seconds;
      made.clear();
      write(made, true, m, groups_, 0);
      visitor(made);
    }
  }

 private:
  // Of a group of blocks. The last option keeps nothing: its blocks' inputs are stored only while
  // the group goes backward.
  struct Option {
    int forward, forward_peak, backward_peak;  // slots
    double forward_seconds, backward_seconds;
  };
  struct Cell {
    double seconds = kNever;
    int16_t keep = -1;   // option of the first group, or
    int16_t split = -1;  // groups gone through before the first input that is stored
  };

  bool keeps_nothing(size_t o) const { return o + 1 == p_.options.size(); }
  // Of all blocks of a group but the last, when that one goes forward or backward.
  int64_t before_last(size_t o) const {
    return (group_ - 1) * (keeps_nothing(o) ? p_.input_bytes : p_.forward[0][o].delta);
  }
  int64_t forward_peak(size_t o) const {
    return p_.forward[0][o].peak +
           (keeps_nothing(o) ? (group_ > 1 ? p_.input_bytes : 0) : before_last(o));
  }
  int64_t backward_peak(size_t o) const {
    return before_last(o) + p_.forward[0][o].delta - p_.input_bytes + p_.backward[0][o].peak;
  }
  Option option(size_t o) const {
    const Stage& forward = p_.forward[0][o];
    const Stage& backward = p_.backward[0][o];
    const double again = keeps_nothing(o) ? (group_ - 1) * forward.seconds : 0;
    return {slots(group_ * forward.delta), slots(forward_peak(o)), slots(backward_peak(o)),
            group_ * forward.seconds, group_ * backward.seconds + again};
  }

  int slots(int64_t bytes) const {
    return static_cast<int>((static_cast<double>(bytes) + unit_ - 1) / unit_);
  }
  // top: up to the model's end and back; otherwise up to where the gradient is known already.
  const Cell& cell(bool top, int memory, int groups) const {
    return (top ? top_ : inner_)[static_cast<size_t>(memory) * (groups_ + 1) + groups];
  }
  Cell& cell(bool top, int memory, int groups) {
    return const_cast<Cell&>(static_cast<const Solver*>(this)->cell(top, memory, groups));
  }
  double seconds(bool top, int memory, int groups) const {
    return memory < 0 ? kNever : cell(top, memory, groups).seconds;
  }

  void solve() {
    top_.resize(static_cast<size_t>(memory_ + 1) * (groups_ + 1));
    inner_.resize(top_.size());
    for (int m = 0; m <= memory_; ++m) {
      if (m >= turn_peak_) cell(true, m, 0).seconds = p_.turn.seconds;
      for (const bool top : {false, true}) {
        for (int n = 1; n <= groups_; ++n) solve(top, m, n);
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

  // The blocks of a group: first .. end - 1.
  int end_of(int first, int groups) const { return std::min(depth_, first + groups * group_); }
  static void go_forward(Schedule& to, int first, int end, const KeepSet& keep) {
    for (int i = first; i < end; ++i) to.push_back({Action::Kind::forward, i, keep});
  }
  static void go_backward(Schedule& to, int first, int end) {
    for (int i = end - 1; i >= first; --i) to.push_back({Action::Kind::backward, i, {}});
  }

  void write(Schedule& to, bool top, int m, int n, int first) const {
    if (n == 0) {
      if (top) to.push_back({Action::Kind::turn, 0, {}});
      return;
    }
    const Cell& best = cell(top, m, n);
    if (best.split > 0) {
      const int on = end_of(first, best.split);
      go_forward(to, first, on, {});
      write(to, top, m - input_, n - best.split, on);
      write(to, false, m, best.split, first);
      return;
    }
    const int end = end_of(first, 1);
    if (top || n > 1) {
      go_forward(to, first, end, p_.options[best.keep]);
      write(to, top, m - options_[best.keep].forward, n - 1, end);
    } else {
      go_forward(to, first, end - 1, {});
    }
    go_backward(to, first, end);
  }

  const Profile& p_;
  const int depth_;
  const int group_, groups_;  // blocks of a group, and their number; the last may be smaller
  const double unit_;
  int input_ = 0, turn_peak_ = 0, memory_ = 0;
  std::vector<Option> options_;
  std::vector<Cell> top_, inner_;
};

}  // namespace

void visit_schedules(const Profile& profile, int64_t depth,
                     const std::function<void(const Schedule&)>& visit) {
  const double unit = whole_unit(profile, depth);
  Solver(profile, depth, unit, true).visit(visit);
  // The slots of deep models are larger than an input: where memory is short, inputs must show.
  constexpr double kMostFiner = 8;
  const double finer = std::max(input_unit(profile), unit / kMostFiner);
  if (profile.input_bytes > 0 && finer < unit) Solver(profile, depth, finer, false).visit(visit);
}

}  // namespace ebb
