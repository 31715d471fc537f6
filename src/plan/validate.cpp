// The validator. It trusts neither lifetimes.cpp nor packing.cpp: it walks the program itself and
// keeps a map of who owns which bytes of the arena.
#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "base/error.h"
#include "plan/plan.h"
#include "program/signature.h"

namespace ebb {

namespace {

// Bytes in use, by first byte. Claiming bytes that another buffer holds is the error looked for.
class Owners {
 public:
  // `piece_bytes`: what lies in them lies within one piece.
  Owners(const Plan& plan, int64_t arena_bytes, int64_t piece_bytes)
      : plan_(plan), arena_bytes_(arena_bytes), piece_bytes_(piece_bytes) {}

  void claim(int id, const std::string& op) {
    const int64_t begin = plan_.offsets[id];
    const int64_t end = begin + plan_.program.buffers[id].bytes();
    require(begin >= 0 && end <= arena_bytes_, "plan: {} ends at byte {} of {}", name(id), end,
            arena_bytes_);
    if (begin == end) return;
    require(begin / piece_bytes_ == (end - 1) / piece_bytes_,
            "plan: {} lies across the end of a piece of {} bytes", name(id), piece_bytes_);
    auto next = held_.lower_bound(begin);
    if (next != held_.begin()) {
      const auto& [other_begin, other] = *std::prev(next);
      require(other_begin + plan_.program.buffers[other].bytes() <= begin,
              "plan: at {}, {} overlaps {}", op, name(id), name(other));
    }
    require(next == held_.end() || next->first >= end, "plan: at {}, {} overlaps {}", op, name(id),
            next == held_.end() ? "" : name(next->second));
    held_.emplace(begin, id);
  }

  void release(int id) {
    if (plan_.program.buffers[id].bytes() > 0) held_.erase(plan_.offsets[id]);
  }

 private:
  const std::string& name(int id) const { return plan_.program.buffers[id].name; }
  const Plan& plan_;
  int64_t arena_bytes_, piece_bytes_;
  std::map<int64_t, int> held_;
};

std::vector<Buf> touched(const Op& op) {
  std::vector<Buf> all;
  for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
    all.insert(all.end(), list->begin(), list->end());
  }
  if (op.scratch) all.push_back(op.scratch);
  return all;
}

// An op that runs, with the time round the loop that it stands in. Every loop is gone through three
// times at most: all between the first and the last are alike.
struct Instance {
  int op;
  int64_t iteration;
  bool last;  // time round
};

std::vector<Instance> unrolled(const Program& program) {
  constexpr int64_t kTimes = 3;
  std::vector<Instance> run;
  int next = 0;
  const auto plain = [&](int end) {
    for (; next < end; ++next) run.push_back({next, 0, true});
  };
  for (const Loop& loop : program.loops) {
    require(loop.begin >= next && loop.begin < loop.end && loop.count > 0,
            "program: the loop at op {} is out of order", loop.begin);
    plain(loop.begin);
    const int64_t times = std::min(kTimes, loop.count);
    for (int64_t i = 0; i < times; ++i) {
      for (int op = loop.begin; op < loop.end; ++op) run.push_back({op, i, i == times - 1});
    }
    next = loop.end;
  }
  plain(static_cast<int>(program.ops.size()));
  return run;
}

// Walks the program as it runs, and follows every buffer from its birth to its death.
class Walk {
 public:
  Walk(const Plan& plan, int64_t arena_bytes, const Limits& limits)
      : plan_(plan),
        program_(plan.program),
        alignment_(limits.alignment),
        owners_(plan, arena_bytes, limits.piece_bytes),
        alive_(program_.buffers.size()),
        written_(program_.buffers.size()),
        home_(program_.buffers.size(), kNone),
        last_op_(program_.buffers.size(), -1) {
    for (const int64_t bytes : plan.away_bytes) {
      away_owners_.emplace_back(plan, bytes, Limits{}.piece_bytes);
    }
  }

  void run() {
    require(plan_.offsets.size() == program_.buffers.size() &&
                plan_.lives.size() == program_.buffers.size() &&
                plan_.held.size() == program_.buffers.size(),
            "plan: {} offsets and {} lives for {} buffers", plan_.offsets.size(),
            plan_.lives.size(), program_.buffers.size());
    check_views();
    find_last_uses();
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      if (program_.buffers[i].resident) begin(static_cast<int>(i), "start", true);
    }
    for (const Buf b : program_.inputs) begin(b.id, "start", true);
    check_homes();
    check_exchanges();
    for (const Instance& at : unrolled(program_)) step(at);
    for (const Buf b : program_.outputs) {
      require(written_[b.id], "program: nothing writes the output {}", name(b.id));
    }
  }

 private:
  static constexpr int kNone = -1;     // touched by nobody yet
  static constexpr int kNowhere = -2;  // outside loops, or in several
  static constexpr int kForever = std::numeric_limits<int>::max();

  const std::string& name(int id) const { return program_.buffers[id].name; }
  int root(Buf b) const { return program_.root(b).id; }

  void check_views() const {
    for (const Buffer& b : program_.buffers) {
      if (!b.is_view()) continue;
      require(b.view.offset >= 0 && b.view.stride >= 0 &&
                  b.view.offset + b.bytes() <= program_.buffer(b.view.of).bytes(),
              "program: the view {} leaves its buffer", b.name);
    }
    for (const Loop& loop : program_.loops) {
      for (int i = loop.begin; i < loop.end; ++i) {
        for (const Buf b : touched(program_.ops[i])) {
          const Buffer& view = program_.buffer(b);
          require(!view.is_view() ||
                      view.view.offset + (loop.count - 1) * view.view.stride + view.bytes() <=
                          program_.buffer(view.view.of).bytes(),
                  "program: {} leaves its buffer in the loop around {}", view.name,
                  program_.ops[i].name);
        }
      }
    }
  }

  // What is away is touched by transfers of its lane alone, and they touch one thing there each.
  void check_homes() const {
    for (const Op& op : program_.ops) {
      const auto* transfer = std::get_if<Transfer>(&op.params);
      int64_t away = 0;
      for (const Buf b : touched(op)) {
        const Buffer& at = program_.buffer(program_.root(b));
        if (!at.away()) continue;
        ++away;
        require(transfer != nullptr && transfer->lane == at.home,
                "program: {} works on {}, which is beyond lane {}", op.name, at.name, at.home);
      }
      require(away <= 1, "program: {} works on several buffers that are away", op.name);
    }
  }

  // Bytes on their way to another rank are not changed, and those on their way from one not
  // touched.
  void check_exchanges() const {
    struct Way {
      Buf buffer;
      bool sends;
    };
    std::vector<Way> open;
    for (const Op& op : program_.ops) {
      const auto* exchange = std::get_if<Exchange>(&op.params);
      if (exchange != nullptr && !exchange->begins()) {
        const Buf ended = exchange->sends() ? op.reads[0] : op.updates[0];
        std::erase_if(open, [&](const Way& way) { return way.buffer == ended; });
        continue;
      }
      for (const Way& way : open) {
        const auto meets = [&](const std::vector<Buf>& list) {
          return std::any_of(list.begin(), list.end(), [&](Buf b) { return meet(b, way.buffer); });
        };
        const bool changes = meets(op.writes) || meets(op.updates);
        require(!changes && (way.sends || !meets(op.reads)),
                "program: {} {} {}, which is on its way", op.name, changes ? "changes" : "reads",
                program_.buffer(way.buffer).name);
      }
      if (exchange == nullptr) continue;
      open.push_back({exchange->sends() ? op.reads[0] : op.writes[0], exchange->sends()});
    }
  }

  // Whether two have bytes in common. Views that move along in a loop may have all, but for those
  // that have different parts of the same stride.
  bool meet(Buf a, Buf b) const {
    if (program_.root(a) != program_.root(b)) return false;
    const Buffer &x = program_.buffer(a), &y = program_.buffer(b);
    if (!x.is_view() || !y.is_view() || x.view.stride != y.view.stride) return true;
    const int64_t stride = x.view.stride;
    const auto begin = [&](const Buffer& view) {
      return stride > 0 ? view.view.offset % stride : view.view.offset;
    };
    const int64_t x_end = begin(x) + x.bytes(), y_end = begin(y) + y.bytes();
    if (stride > 0 && std::max(x_end, y_end) > stride) return true;
    return begin(x) < y_end && begin(y) < x_end;
  }

  void find_last_uses() {
    std::vector<int> loop_of(program_.ops.size(), kNowhere);
    for (size_t l = 0; l < program_.loops.size(); ++l) {
      for (int i = program_.loops[l].begin; i < program_.loops[l].end; ++i) {
        loop_of[i] = static_cast<int>(l);
      }
    }
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      for (const Buf b : touched(program_.ops[i])) {
        int& home = home_[root(b)];
        home = home == kNone || home == loop_of[i] ? loop_of[i] : kNowhere;
        last_op_[root(b)] = static_cast<int>(i);
      }
    }
    const auto keep = [&](int id, int until) {
      home_[id] = kNowhere;
      last_op_[id] = std::max(last_op_[id], until);
    };
    for (const Buf b : program_.inputs) keep(b.id, 0);
    for (const Buf b : program_.outputs) keep(b.id, kForever);
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      if (program_.buffers[i].resident) keep(static_cast<int>(i), kForever);
    }
    // Touched in a loop and outside it: the loop's next time round needs it.
    for (const Loop& loop : program_.loops) {
      for (size_t i = 0; i < home_.size(); ++i) {
        const bool inside = loop.begin <= last_op_[i] && last_op_[i] < loop.end;
        if (inside && home_[i] == kNowhere) last_op_[i] = loop.end - 1;
      }
    }
    ending_.resize(program_.ops.size());
    for (size_t i = 0; i < last_op_.size(); ++i) {
      if (last_op_[i] >= 0 && last_op_[i] < static_cast<int>(ending_.size())) {
        ending_[last_op_[i]].push_back(static_cast<int>(i));
      }
    }
  }

  void begin(int id, const std::string& op, bool holds_value) {
    if (!alive_[id]) claim(id, op);
    alive_[id] = true;
    if (holds_value) written_[id] = true;
    require(plan_.offsets[id] % alignment_ == 0 || program_.buffers[id].bytes() == 0,
            "plan: {} is not aligned to {}", name(id), alignment_);
    require(program_.buffers[id].resident || program_.buffers[id].away() ||
                program_.buffers[id].bytes() == 0 || plan_.offsets[id] >= plan_.resident_bytes,
            "plan: {} lies among the residents", name(id));
  }

  Owners& owners(int id) {
    const Buffer& b = program_.buffers[id];
    return b.away() ? away_owners_.at(b.home) : owners_;
  }
  void claim(int id, const std::string& op) { owners(id).claim(id, op); }

  void end(int id) {
    if (alive_[id]) owners(id).release(id);
    alive_[id] = false;
    written_[id] = false;
  }

  // A buffer of the loop ends with its last op each time round, any other the last time only.
  bool ends(int id, const Instance& at) const {
    return last_op_[id] == at.op && (at.last || home_[id] >= 0);
  }

  // An output may begin in the place of an input that ends here, where the op allows it.
  void hand_over(const Op& op, const Instance& at) {
    const std::vector<Arg> writes = signature(op.params).writes;
    for (size_t w = 0; w < writes.size(); ++w) {
      const int out = root(op.writes[w]);
      for (const int r : writes[w].over) {
        const int in = root(op.reads[r]);
        const bool same = plan_.offsets[in] == plan_.offsets[out] &&
                          program_.buffers[in].bytes() == program_.buffers[out].bytes();
        if (in != out && same && !alive_[out] && ends(in, at)) end(in);
      }
    }
  }

  void step(const Instance& at) {
    const Op& op = program_.ops[at.op];
    for (const auto* list : {&op.reads, &op.updates}) {
      for (const Buf b : *list) {
        require(written_[root(b)], "program: {} reads {} before anything wrote it", op.name,
                program_.buffer(b).name);
        begin(root(b), op.name, false);
      }
    }
    hand_over(op, at);
    for (const Buf b : op.writes) begin(root(b), op.name, true);
    if (op.scratch) begin(op.scratch.id, op.name, false);
    for (const int id : ending_[at.op]) {
      if (ends(id, at)) end(id);
    }
  }

  const Plan& plan_;
  const Program& program_;
  const int64_t alignment_;
  Owners owners_;                    // of the arena,
  std::vector<Owners> away_owners_;  // and of what lies beyond each lane
  std::vector<bool> alive_, written_;
  std::vector<int> home_;                 // the one loop whose ops touch it
  std::vector<int> last_op_;              // that touches it
  std::vector<std::vector<int>> ending_;  // by op: the buffers whose last op it is
};

}  // namespace

void validate_plan(const Plan& plan, int64_t arena_bytes, const Limits& limits) {
  Walk(plan, arena_bytes, limits).run();
}

}  // namespace ebb
