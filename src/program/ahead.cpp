#include "program/ahead.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ebb {

namespace {

class Ahead {
 public:
  explicit Ahead(Program program) : old_(std::move(program)) {}

  Program write() {
    find_positions();
    made_.name = std::move(old_.name);
    made_.buffers = std::move(old_.buffers);
    made_.inputs = std::move(old_.inputs);
    made_.outputs = std::move(old_.outputs);
    write_ops();
    return std::move(made_);
  }

 private:
  using Stream = std::pair<int, int>;  // from a rank, on a channel

  const Exchange* receive(int op) const {
    if (op >= size()) return nullptr;
    const auto* exchange = std::get_if<Exchange>(&old_.ops[op].params);
    return exchange != nullptr && !exchange->sends() ? exchange : nullptr;
  }

  // Begins here, and ends with the next op.
  bool at_once(int op) const {
    const Exchange *begin = receive(op), *end = receive(op + 1);
    return begin != nullptr && end != nullptr && begin->begins() && !end->begins() &&
           old_.ops[op].writes[0] == old_.ops[op + 1].updates[0];
  }

  bool in_loop(int op) const {
    return std::any_of(old_.loops.begin(), old_.loops.end(),
                       [&](const Loop& loop) { return loop.begin <= op && op < loop.end; });
  }

  // Behind the op, and behind the loop that it stands in.
  int behind(int op) const {
    for (const Loop& loop : old_.loops) {
      if (loop.begin <= op && op < loop.end) return loop.end;
    }
    return op + 1;
  }

  // Where the stage before the op's own starts: nothing is held longer than that ahead of its need.
  int stage_before(int op) const {
    const auto after = std::upper_bound(old_.marks.begin(), old_.marks.end(), op);
    const int start = after - old_.marks.begin() < 2 ? 0 : *(after - 2);
    return start > 0 && in_loop(start - 1) ? behind(start - 1) : start;
  }

  // Receives with no work between them are a group.
  void find_positions() {
    std::map<int, int> free_from;  // by root: behind the last op that touched it
    std::map<Stream, int> next;    // of each stream: where another may begin
    bool in_group = false;
    int group = 0, before = 0, ended = 0;  // where this group may begin; where others ended
    for (int i = 0; i < size(); ++i) {
      const Op& op = old_.ops[i];
      if (!std::holds_alternative<Exchange>(op.params)) in_group = false;
      if (const Exchange* r = receive(i); r != nullptr && r->begins()) {
        int& from = next[{r->peer, r->channel}];
        const bool moves = at_once(i) && !in_loop(i);
        if (moves) {
          if (!std::exchange(in_group, true)) {
            group = std::max(before, stage_before(i));
            before = ended;
          }
          ended = i + 2;
          from = std::max({group, from, free_from[old_.root(op.writes[0]).id]});
          begun_at_[from].push_back(i);
        } else {
          from = behind(i);
        }
      }
      for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
        for (const Buf b : *list) free_from[old_.root(b).id] = behind(i);
      }
    }
  }

  // What begins ahead comes before the mark and the loop that stand at the same op.
  void write_ops() {
    std::vector<bool> moved(size());
    for (const auto& [position, begins] : begun_at_) {
      for (const int begin : begins) moved[begin] = true;
    }
    size_t loop = 0, mark = 0, cut = 0;
    for (int i = 0; i <= size(); ++i) {
      if (loop < old_.loops.size() && old_.loops[loop].end == i) {
        made_.loops.back().end = here();
        ++loop;
      }
      if (const auto begun = begun_at_.find(i); begun != begun_at_.end()) {
        for (const int begin : begun->second) made_.ops.push_back(old_.ops[begin]);
      }
      for (; mark < old_.marks.size() && old_.marks[mark] == i; ++mark) {
        made_.marks.push_back(here());
      }
      for (; cut < old_.cuts.size() && old_.cuts[cut] == i; ++cut) made_.cuts.push_back(here());
      if (loop < old_.loops.size() && old_.loops[loop].begin == i) {
        made_.loops.push_back({here(), 0, old_.loops[loop].count});
      }
      if (i < size() && !moved[i]) made_.ops.push_back(std::move(old_.ops[i]));
    }
  }

  int size() const { return static_cast<int>(old_.ops.size()); }
  int here() const { return static_cast<int>(made_.ops.size()); }

  Program old_, made_;
  std::map<int, std::vector<int>> begun_at_;  // before which op: those that begin there
};

}  // namespace

Program receive_ahead(Program program) { return Ahead(std::move(program)).write(); }

}  // namespace ebb
