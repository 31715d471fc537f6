#include "program/offload.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"

namespace ebb {

namespace {

constexpr int kNone = -1;

// Ops [begin, end) of the program; `loop` is the loop that all of them stand in, if there is one.
struct Stage {
  int begin, end;
  int loop = kNone;
};

// One buffer's stay in memory.
struct Visit {
  int root;
  int first_stage, last_stage;
  int first_op, last_op;    // that touch it, widened to the whole of a loop within the stage
  int last_change = kNone;  // the same, of those that change it
  bool reads_first = false;
  Buf copy;
};

class Offloader {
 public:
  Offloader(Program program, const std::vector<Home>& homes,
            const std::vector<int64_t>& memory_bytes)
      : old_(std::move(program)), homes_(homes), memory_bytes_(memory_bytes) {
    find_stages();
    find_visits();
  }

  Program write() {
    made_.name = old_.name;
    made_.buffers = old_.buffers;
    made_.inputs = old_.inputs;
    made_.outputs = old_.outputs;
    for (const Home lane : std::set<Home>(homes_.begin(), homes_.end())) {
      if (lane == kOnDevice || memory_bytes_.at(lane) == 0) continue;
      made_.buffers.push_back({lane_memory(lane),
                               "lanes",
                               Purpose::staging,
                               DType::u8,
                               {memory_bytes_.at(lane)},
                               true});
    }
    for (Visit& visit : visits_) add_copy(visit);
    for (size_t id = 0; id < homes_.size(); ++id) made_.buffers[id].home = homes_[id];
    for (const Visit& visit : visits_) place_transfers(visit);
    write_ops();
    return std::move(made_);
  }

 private:
  // ---- what there is ----

  void find_stages() {
    std::set<int> all = {0, static_cast<int>(old_.ops.size())};
    all.insert(old_.marks.begin(), old_.marks.end());
    all.insert(old_.cuts.begin(), old_.cuts.end());
    const std::vector<int> edges(all.begin(), all.end());
    for (size_t i = 0; i + 1 < edges.size(); ++i) stages_.push_back({edges[i], edges[i + 1]});
    for (Stage& stage : stages_) {
      for (size_t l = 0; l < old_.loops.size(); ++l) {
        const Loop& loop = old_.loops[l];
        const bool around = loop.begin <= stage.begin && stage.end <= loop.end;
        const bool more = loop.begin < stage.begin || stage.end < loop.end;
        if (around && more) stage.loop = static_cast<int>(l);
      }
    }
  }

  int stage_of(int op) const {
    const auto after =
        std::upper_bound(stages_.begin(), stages_.end(), op,
                         [](int wanted, const Stage& stage) { return wanted < stage.begin; });
    return static_cast<int>(after - stages_.begin()) - 1;
  }

  // A loop within a stage is entered and left as a whole.
  std::pair<int, int> widened(int op) const {
    if (stages_[stage_of(op)].loop != kNone) return {op, op};
    for (const Loop& loop : old_.loops) {
      if (loop.begin <= op && op < loop.end) return {loop.begin, loop.end - 1};
    }
    return {op, op};
  }

  void find_visits() {
    std::map<int, std::vector<Visit>> by_root;
    for (int i = 0; i < static_cast<int>(old_.ops.size()); ++i) {
      const Op& op = old_.ops[i];
      for (const Buf b : op.reads) note(by_root, b, i, true, false);
      for (const Buf b : op.updates) note(by_root, b, i, true, true);
      for (const Buf b : op.writes) note(by_root, b, i, false, true);
    }
    for (auto& [root, visits] : by_root) {
      visits_.insert(visits_.end(), visits.begin(), visits.end());
    }
    visit_of_.resize(old_.buffers.size());
    for (size_t v = 0; v < visits_.size(); ++v) {
      visit_of_[visits_[v].root].push_back(static_cast<int>(v));
    }
  }

  void note(std::map<int, std::vector<Visit>>& by_root, Buf b, int op, bool reads, bool changes) {
    const int root = old_.root(b).id;
    if (!is_away(root)) return;
    const int stage = stage_of(op);
    const auto [begin, end] = widened(op);
    std::vector<Visit>& visits = by_root[root];
    const bool goes_on = !visits.empty() && stage <= visits.back().last_stage + 1 &&
                         stages_[stage].loop == stages_[visits.back().last_stage].loop;
    if (!goes_on) {
      // What a resident held is wanted even where the first op writes: it may write a part.
      const bool held = old_.buffers[root].resident || !visits.empty();
      visits.push_back({root, stage, stage, begin, end, kNone, reads || held, {}});
    }
    Visit& visit = visits.back();
    visit.last_stage = stage;
    visit.last_op = end;
    if (changes) visit.last_change = end;
  }

  // ---- what is made of it ----

  void add_copy(Visit& visit) {
    Buffer copy = old_.buffers[visit.root];
    const auto at = std::find(visit_of_[visit.root].begin(), visit_of_[visit.root].end(),
                              static_cast<int>(&visit - visits_.data()));
    copy.name += fmt::format("@{}", at - visit_of_[visit.root].begin() + 1);
    copy.resident = false;
    visit.copy = Buf{static_cast<int32_t>(made_.buffers.size())};
    made_.buffers.push_back(std::move(copy));
  }

  // Before an op, in the order: what ends and what is stored, then the stage's mark, then what is
  // fetched. At the edges of a loop there are two such places.
  struct Place {
    std::vector<Op> stores, fetches;
  };

  bool wanted_later(const Visit& visit) const {
    return old_.buffers[visit.root].resident ||
           visit_of_[visit.root].back() != static_cast<int>(&visit - visits_.data());
  }

  void place_transfers(const Visit& visit) {
    using Part = Transfer::Part;
    const Stage& first = stages_[visit.first_stage];
    const int loop = first.loop;
    if (visit.reads_first) {
      place(fetch_position(visit), loop).fetches.push_back(transfer(Part::fetch_begin, visit));
      place(visit.first_op, loop).fetches.push_back(transfer(Part::fetch_end, visit));
    }
    if (visit.last_change == kNone || !wanted_later(visit)) return;
    place(visit.last_change + 1, loop).stores.push_back(transfer(Part::store_begin, visit));
    const int next = stage_of(visit.last_change) + 1;
    const bool has_next = next < static_cast<int>(stages_.size()) && stages_[next].loop == loop;
    const int written = has_next ? stages_[next].end : stages_[next - 1].end;
    place(std::max(written, visit.last_op + 1), loop)
        .stores.push_back(transfer(Part::store_end, visit));
  }

  // The start of the stage, if much of it comes before the visit; else that of the stage before.
  int fetch_position(const Visit& visit) const {
    const Stage& own = stages_[visit.first_stage];
    double before = 0, all = 0;
    const std::vector<int64_t> times = old_.repeats();
    for (int i = own.begin; i < own.end; ++i) {
      const double flops = old_.ops[i].flops() * static_cast<double>(times[i]);
      all += flops;
      if (i < visit.first_op) before += flops;
    }
    if (before > 0 && before >= all / 2) return own.begin;
    if (visit.first_stage == 0) return own.begin;
    const Stage& previous = stages_[visit.first_stage - 1];
    return previous.loop == own.loop ? previous.begin : own.begin;
  }

  // Inside the loop, for what belongs to it, at its edges; everywhere else there is one place.
  Place& place(int op, int loop) {
    if (loop != kNone && op == old_.loops[loop].begin) return loop_start_[op];
    if (loop != kNone && op == old_.loops[loop].end) return loop_end_[op];
    return outside_[op];
  }

  Op transfer(Transfer::Part part, const Visit& visit) const {
    const Buffer& copy = made_.buffer(visit.copy);
    const Buf away{static_cast<int32_t>(visit.root)};
    const Transfer params{part, copy.count(), copy.type, homes_[visit.root]};
    const char* verb = params.fetches() ? "fetch" : "store";
    Op op{fmt::format("{}.{}.{}", verb, copy.name, params.begins() ? "begin" : "end"),
          copy.layer,
          params,
          {},
          {},
          {},
          {}};
    switch (part) {
      case Transfer::Part::fetch_begin:
        op.reads = {away};
        op.writes = {visit.copy};
        break;
      case Transfer::Part::fetch_end:
        op.updates = {visit.copy};
        break;
      case Transfer::Part::store_begin:
        op.reads = {visit.copy};
        op.writes = {away};
        break;
      case Transfer::Part::store_end:
        op.reads = {visit.copy};
        break;
    }
    return op;
  }

  void write_ops() {
    const int count = static_cast<int>(old_.ops.size());
    size_t loop = 0, mark = 0;
    for (int i = 0; i <= count; ++i) {
      if (loop < old_.loops.size() && old_.loops[loop].end == i) {
        append(loop_end_[i].stores);
        made_.loops.back().end = here();
        ++loop;
      }
      append(outside_[i].stores);
      const auto note_marks = [&] {
        for (; mark < old_.marks.size() && old_.marks[mark] == i; ++mark) {
          made_.marks.push_back(here());
        }
      };
      const bool opens = loop < old_.loops.size() && old_.loops[loop].begin == i;
      note_marks();
      append(outside_[i].fetches);
      if (opens) {
        made_.loops.push_back({here(), 0, old_.loops[loop].count});
        append(loop_start_[i].stores);
        append(loop_start_[i].fetches);
      }
      if (i < count) made_.ops.push_back(with_copies(old_.ops[i], i));
    }
  }

  bool is_away(int root) const { return homes_[root] != kOnDevice; }

  int here() const { return static_cast<int>(made_.ops.size()); }
  void append(const std::vector<Op>& ops) {
    made_.ops.insert(made_.ops.end(), ops.begin(), ops.end());
  }

  Op with_copies(Op op, int index) {
    for (auto* list : {&op.reads, &op.writes, &op.updates}) {
      for (Buf& b : *list) {
        const int root = old_.root(b).id;
        if (is_away(root)) b = copy_of(b, root, index);
      }
    }
    return op;
  }

  Buf copy_of(Buf b, int root, int index) {
    const auto& all = visit_of_[root];
    const auto found = std::find_if(all.begin(), all.end(), [&](int v) {
      return visits_[v].first_op <= index && index <= visits_[v].last_op;
    });
    require(found != all.end(), "offload: op {} is in no visit to {}", index,
            old_.buffers[root].name);
    const Visit& visit = visits_[*found];
    if (!old_.buffer(b).is_view()) return visit.copy;
    const auto [at, added] = views_.try_emplace({b.id, *found}, Buf{});
    if (added) {
      Buffer view = old_.buffer(b);
      view.name += fmt::format("@{}", found - all.begin() + 1);
      view.view.of = visit.copy;
      at->second = Buf{static_cast<int32_t>(made_.buffers.size())};
      made_.buffers.push_back(std::move(view));
    }
    return at->second;
  }

  const Program old_;
  const std::vector<Home>& homes_;
  const std::vector<int64_t>& memory_bytes_;  // by lane
  std::vector<Stage> stages_;
  std::vector<Visit> visits_;
  std::vector<std::vector<int>> visit_of_;  // by root
  std::map<int, Place> outside_, loop_start_, loop_end_;
  std::map<std::pair<int, int>, Buf> views_;  // by view and visit
  Program made_;
};

}  // namespace

std::string lane_memory(Home lane) { return fmt::format("lane{}.memory", lane); }

Program offloaded(Program program, const std::vector<Home>& homes,
                  const std::vector<int64_t>& memory_bytes) {
  const auto here = [](Home home) { return home == kOnDevice; };
  if (std::all_of(homes.begin(), homes.end(), here)) return program;
  return Offloader(std::move(program), homes, memory_bytes).write();
}

}  // namespace ebb
