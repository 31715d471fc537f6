// The validator. It trusts neither lifetimes.cpp nor packing.cpp: it walks the program itself and
// keeps a map of who owns which bytes of the arena.
#include <algorithm>
#include <map>
#include <vector>

#include "base/error.h"
#include "plan/plan.h"

namespace ebb {

namespace {

// Bytes in use, by first byte. Claiming bytes that another buffer holds is the error looked for.
class Owners {
 public:
  Owners(const Plan& plan, int64_t arena_bytes) : plan_(plan), arena_bytes_(arena_bytes) {}

  void claim(int id, const std::string& op) {
    const int64_t begin = plan_.offsets[id];
    const int64_t end = begin + plan_.program.buffers[id].bytes();
    require(begin >= 0 && end <= arena_bytes_, "plan: {} ends at byte {} of an arena of {}",
            name(id), end, arena_bytes_);
    if (begin == end) return;
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
  int64_t arena_bytes_;
  std::map<int64_t, int> held_;
};

std::vector<int> touched(const Op& op) {
  std::vector<int> ids;
  for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
    for (const Buf b : *list) ids.push_back(b.id);
  }
  if (op.scratch) ids.push_back(op.scratch.id);
  return ids;
}

}  // namespace

void validate_plan(const Plan& plan, int64_t arena_bytes) {
  const Program& program = plan.program;
  const auto count = program.buffers.size();
  require(plan.offsets.size() == count && plan.lives.size() == count,
          "plan: {} buffers but {} offsets", count, plan.offsets.size());
  Owners owners(plan, arena_bytes);
  std::vector<bool> alive(count, false);
  std::vector<bool> written(count, false);
  std::vector<int> last_use(count, -1);
  for (size_t i = 0; i < program.ops.size(); ++i) {
    for (const int id : touched(program.ops[i])) last_use[id] = static_cast<int>(i);
  }
  for (const Buf b : program.outputs) last_use[b.id] = static_cast<int>(program.ops.size());
  for (const Buf b : program.inputs) last_use[b.id] = std::max(last_use[b.id], 0);
  const auto start = [&](int id, const std::string& op) {
    if (!alive[id]) owners.claim(id, op);
    alive[id] = true;
    require(program.buffers[id].resident || program.buffers[id].bytes() == 0 ||
                plan.offsets[id] >= plan.resident_bytes,
            "plan: {} lies among the residents", program.buffers[id].name);
  };
  for (size_t i = 0; i < count; ++i) {
    if (!program.buffers[i].resident) continue;
    start(static_cast<int>(i), "start");
    written[i] = true;
    last_use[i] = static_cast<int>(program.ops.size());
  }
  for (const Buf b : program.inputs) {
    start(b.id, "start");
    written[b.id] = true;
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    for (const int id : touched(op)) start(id, op.name);
    for (const auto* list : {&op.reads, &op.updates}) {
      for (const Buf b : *list) {
        require(written[b.id], "program: {} reads {} before anything wrote it", op.name,
                program.buffer(b).name);
      }
    }
    for (const Buf b : op.writes) written[b.id] = true;
    std::vector<int> ending = touched(op);
    if (i == 0) {
      for (const Buf b : program.inputs) ending.push_back(b.id);
    }
    for (const int id : ending) {
      if (last_use[id] == static_cast<int>(i) && alive[id]) {
        owners.release(id);
        alive[id] = false;
      }
    }
  }
  for (const Buf b : program.outputs) {
    require(written[b.id], "program: nothing writes the output {}", program.buffer(b).name);
  }
}

}  // namespace ebb
