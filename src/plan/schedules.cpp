// The persistent schedule of Rotor (Beaumont et al.), with several keep-sets a block as in
// Rockmate. Where blocks are alike their number is what matters, and otherwise also where they
// stand. What a schedule really takes is found afterwards, by estimate() and by packing it.
#include "plan/schedules.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace ebb {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// How finely is looked: with blocks that differ there is a table for every pair of places, and less
// of everything must do.
struct Fineness {
  double slots;
  int splits;
  int64_t groups;
};
constexpr Fineness kOfEven = {800, 32, 100}, kOfUneven = {200, 8, 28};
Fineness fineness(const Profile& p) { return p.even() ? kOfEven : kOfUneven; }

// Bytes of a slot: those that show one block's input, and those that hold everything in the most
// slots there are.
double input_unit(const Profile& p) {
  return std::max(1.0, static_cast<double>(p.input_bytes) / 2);
}
double whole_unit(const Profile& p, int64_t depth) {
  double richest = 0;
  for (int64_t i = 0; i < depth; ++i) richest += static_cast<double>(p.at(i).forward[0].delta);
  return std::max(input_unit(p), richest / fineness(p).slots);
}

class Solver {
 public:
  // `unit`: bytes of a slot. Only what fits into the most slots above the tallest stage is looked
  // at, unless `whole`.
  Solver(const Profile& p, int64_t depth, double unit, bool whole)
      : p_(p),
        fine_(fineness(p)),
        depth_(static_cast<int>(depth)),
        group_(static_cast<int>((depth + fine_.groups - 1) / fine_.groups)),
        groups_((depth_ + group_ - 1) / group_),
        unit_(unit) {
    int tallest = slots(p.turn.peak), richest = 0;
    for (int g = 0; g < (p.even() ? 1 : groups_); ++g) {
      std::vector<Option> options;
      for (size_t o = 0; o < p.options.size(); ++o) {
        options.push_back(option(o, g * group_));
        tallest = std::max({tallest, options[o].forward_peak, options[o].backward_peak});
      }
      richest += options[0].forward;
      options_.push_back(std::move(options));
    }
    if (p.even()) richest *= groups_;
    input_ = slots(p.input_bytes);
    turn_peak_ = slots(p.turn.peak);
    memory_ = tallest + (whole ? richest + 1 : static_cast<int>(fine_.slots));
    solve();
  }

  void visit(const std::function<void(const Schedule&)>& visitor) const {
    double last = kNever;
    Schedule made;
    for (int m = 0; m <= memory_; ++m) {
      const Cell& best = top(m, 0);
      if (best.seconds >= last) continue;
      last = best.seconds;
      made.clear();
      write(made, true, m, 0, groups_);
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

  // Of the blocks from `first` on that are a group.
  Option option(size_t o, int first) const {
    const int end = p_.even() ? first + group_ : end_of(first, 1);
    int64_t before = 0;  // of the blocks of the group, when the next one goes forward,
    int64_t inputs = 0;  // and the same where they keep nothing and go backward
    int64_t forward_peak = 0, backward_peak = 0, forward = 0;
    double forward_seconds = 0, backward_seconds = 0;
    for (int i = first; i < end; ++i) {
      const Stage& on = p_.at(i).forward[o];
      const Stage& back = p_.at(i).backward[o];
      forward_peak = std::max(forward_peak, before + on.peak);
      backward_peak = std::max(backward_peak, (keeps_nothing(o) ? inputs : before) + on.delta -
                                                  p_.input_bytes + back.peak);
      forward += on.delta;
      before = keeps_nothing(o) ? p_.input_bytes : forward;
      inputs += p_.input_bytes;
      forward_seconds += on.seconds;
      // Without anything kept, all but the last go forward once more.
      backward_seconds += back.seconds + (keeps_nothing(o) && i + 1 < end ? on.seconds : 0);
    }
    return {slots(forward), slots(forward_peak), slots(backward_peak), forward_seconds,
            backward_seconds};
  }

  int slots(int64_t bytes) const {
    return static_cast<int>((static_cast<double>(bytes) + unit_ - 1) / unit_);
  }

  // The best for `count` groups from `first` on. Up to the model's end and back, or up to where the
  // gradient is known already. Of blocks that are alike `first` does not matter.
  const std::vector<Option>& options(int first) const { return options_[p_.even() ? 0 : first]; }
  Cell& top(int memory, int first) {
    return top_[static_cast<size_t>(memory) * (groups_ + 1) + first];
  }
  const Cell& top(int memory, int first) const {
    return const_cast<Solver*>(this)->top(memory, first);
  }
  size_t inner_at(int first, int count) const {
    return (p_.even() ? 0 : first * groups_ - first * (first - 1) / 2) + count - 1;
  }
  size_t inner_size() const {
    return inner_at(p_.even() ? 0 : groups_ - 1, p_.even() ? groups_ : 1) + 1;
  }
  Cell& inner(int memory, int first, int count) {
    return inner_[memory * inner_size() + inner_at(first, count)];
  }
  const Cell& inner(int memory, int first, int count) const {
    return const_cast<Solver*>(this)->inner(memory, first, count);
  }
  const Cell& cell(bool to_top, int memory, int first, int count) const {
    return to_top ? top(memory, first) : inner(memory, first, count);
  }
  double seconds(bool to_top, int memory, int first, int count) const {
    return memory < 0 ? kNever : cell(to_top, memory, first, count).seconds;
  }

  void solve() {
    top_.resize(static_cast<size_t>(memory_ + 1) * (groups_ + 1));
    inner_.resize(static_cast<size_t>(memory_ + 1) * inner_size());
    for (int m = 0; m <= memory_; ++m) {
      if (m >= turn_peak_) top(m, groups_).seconds = p_.turn.seconds;
      for (int n = 1; n <= groups_; ++n) {
        for (int first = 0; first + n <= (p_.even() ? n : groups_); ++first) {
          inner(m, first, n) = best(false, m, first, n);
        }
      }
      for (int first = groups_ - 1; first >= 0; --first) {
        top(m, first) = best(true, m, first, groups_ - first);
      }
    }
  }

  Cell best(bool to_top, int m, int first, int n) const {
    Cell best;
    const std::vector<Option>& own = options(first);
    if (!to_top && n == 1) {
      if (m >= own.back().backward_peak) best = {own.back().backward_seconds, 0, -1};
      return best;
    }
    for (size_t o = 0; o + 1 < own.size(); ++o) {
      const Option& option = own[o];
      if (m < option.forward_peak || m < option.backward_peak) continue;
      const double t = option.forward_seconds + option.backward_seconds +
                       seconds(to_top, m - option.forward, first + 1, n - 1);
      if (t < best.seconds) best = {t, static_cast<int16_t>(o), -1};
    }
    const int most = to_top ? n : n - 1;
    const int step = std::max(1, most / fine_.splits);
    int peak = 0;
    double on = 0;
    for (int j = 1, gone = 0; j <= most; j += step) {
      for (; gone < j; ++gone) {
        const Option& nothing = options(first + gone).back();
        peak = std::max(peak, nothing.forward_peak + (gone > 0 ? input_ : 0));
        on += nothing.forward_seconds;
      }
      if (m < peak) break;
      const double t =
          on + seconds(to_top, m - input_, first + j, n - j) + seconds(false, m, first, j);
      if (t < best.seconds) best = {t, -1, static_cast<int16_t>(j)};
    }
    return best;
  }

  // The blocks of a group: first .. end - 1.
  int end_of(int first, int groups) const { return std::min(depth_, first + groups * group_); }
  static void go_forward(Schedule& to, int first, int end, const KeepSet& keep) {
    for (int i = first; i < end; ++i) to.push_back({Action::Kind::forward, i, keep});
  }
  static void go_backward(Schedule& to, int first, int end) {
    for (int i = end - 1; i >= first; --i) to.push_back({Action::Kind::backward, i, {}});
  }

  void write(Schedule& to, bool to_top, int m, int first, int n) const {
    if (n == 0) {
      if (to_top) to.push_back({Action::Kind::turn, 0, {}});
      return;
    }
    const Cell& best = cell(to_top, m, first, n);
    const int begin = first * group_;
    if (best.split > 0) {
      go_forward(to, begin, end_of(begin, best.split), {});
      write(to, to_top, m - input_, first + best.split, n - best.split);
      write(to, false, m, first, best.split);
      return;
    }
    const int end = end_of(begin, 1);
    if (to_top || n > 1) {
      go_forward(to, begin, end, p_.options[best.keep]);
      write(to, to_top, m - options(first)[best.keep].forward, first + 1, n - 1);
    } else {
      go_forward(to, begin, end - 1, {});
    }
    go_backward(to, begin, end);
  }

  const Profile& p_;
  const Fineness fine_;
  const int depth_;
  const int group_, groups_;  // blocks of a group, and their number; the last may be smaller
  const double unit_;
  int input_ = 0, turn_peak_ = 0, memory_ = 0;
  std::vector<std::vector<Option>> options_;  // of each group; of the first, if all are alike
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
