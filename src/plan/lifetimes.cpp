#include "plan/lifetimes.h"

#include <algorithm>
#include <numeric>

#include "program/signature.h"

namespace ebb {

std::vector<Lifetime> lifetimes(const Program& program) {
  const int end = static_cast<int>(program.ops.size());
  std::vector<Lifetime> lives(program.buffers.size(), Lifetime{end, -1});
  const auto touch = [&](Buf b, int op) {
    Lifetime& life = lives[program.root(b).id];
    life.begin = std::min(life.begin, op);
    life.end = std::max(life.end, op + 1);
  };
  for (int i = 0; i < end; ++i) {
    const Op& op = program.ops[i];
    for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
      for (const Buf b : *list) touch(b, i);
    }
    if (op.scratch) touch(op.scratch, i);
  }
  // The host touches before the first op and after the last: never inside a loop.
  for (const Buf b : program.inputs) touch(b, -1);
  for (const Buf b : program.outputs) touch(b, end);
  for (size_t i = 0; i < lives.size(); ++i) {
    if (program.buffers[i].resident) lives[i] = {-1, end + 1};
    Lifetime& life = lives[i];
    if (life.begin >= life.end || program.buffers[i].away()) {
      life = {};
      continue;
    }
    for (const Loop& loop : program.loops) {
      const bool meets = life.begin < loop.end && loop.begin < life.end;
      const bool within = loop.begin <= life.begin && life.end <= loop.end;
      if (!meets || within) continue;
      life.begin = std::min(life.begin, loop.begin);
      life.end = std::max(life.end, loop.end);
    }
    life = {std::max(0, life.begin), std::min(std::max(end, 1), std::max(life.end, 1))};
  }
  return lives;
}

namespace {

// The ops of the loop around each op; all of the program where there is none.
std::vector<Lifetime> surroundings(const Program& program) {
  const int end = static_cast<int>(program.ops.size());
  std::vector<Lifetime> around(program.ops.size(), Lifetime{0, end});
  for (const Loop& loop : program.loops) {
    std::fill(around.begin() + loop.begin, around.begin() + loop.end,
              Lifetime{loop.begin, loop.end});
  }
  return around;
}

}  // namespace

std::vector<int> shared_places(const Program& program, const std::vector<Lifetime>& lives) {
  std::vector<int> place(program.buffers.size());
  std::vector<bool> fixed(program.buffers.size());
  std::vector<bool> taken(program.buffers.size());  // another buffer has its place already
  for (size_t i = 0; i < place.size(); ++i) {
    place[i] = static_cast<int>(i);
    const Buffer& b = program.buffers[i];
    fixed[i] = b.resident || b.is_view() || b.away();
  }
  for (const auto* list : {&program.inputs, &program.outputs}) {
    for (const Buf b : *list) fixed[b.id] = true;
  }
  const std::vector<Lifetime> around = surroundings(program);
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const std::vector<Arg> writes = signature(op.params).writes;
    for (size_t w = 0; w < writes.size(); ++w) {
      const int out = op.writes[w].id;
      if (fixed[out] || lives[out].begin != static_cast<int>(i)) continue;
      if (lives[out].end > around[i].end) continue;  // its last value outlives the loop
      for (const int r : writes[w].over) {
        const int in = op.reads[r].id;
        if (fixed[in] || taken[in] || lives[in].end != static_cast<int>(i) + 1) continue;
        if (lives[in].begin < around[i].begin) continue;  // the next time round reads it again
        if (program.buffers[in].bytes() != program.buffers[out].bytes()) continue;
        place[out] = place[in];
        taken[in] = true;
        break;
      }
    }
  }
  return place;
}

std::vector<Lifetime> held_lives(const std::vector<Lifetime>& lives,
                                 const std::vector<int>& place) {
  std::vector<Lifetime> held = lives;
  std::vector<int> by_birth(place.size());
  std::iota(by_birth.begin(), by_birth.end(), 0);
  std::stable_sort(by_birth.begin(), by_birth.end(),
                   [&](int a, int b) { return lives[a].begin < lives[b].begin; });
  std::vector<int> holder(place.size(), -1);  // of each place, so far
  for (const int i : by_birth) {
    if (lives[i].empty()) continue;
    int& last = holder[place[i]];
    if (last >= 0) held[last].end = lives[i].begin;
    last = i;
  }
  return held;
}

}  // namespace ebb
