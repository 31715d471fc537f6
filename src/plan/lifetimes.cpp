#include "plan/lifetimes.h"

#include <algorithm>

namespace ebb {

std::vector<Lifetime> lifetimes(const Program& program) {
  const int end = static_cast<int>(program.ops.size());
  std::vector<Lifetime> lives(program.buffers.size(), Lifetime{end, 0});
  const auto touch = [&](Buf b, int op) {
    Lifetime& life = lives[b.id];
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
  for (const Buf b : program.inputs) touch(b, 0);
  for (const Buf b : program.outputs) touch(b, std::max(0, end - 1));
  for (size_t i = 0; i < lives.size(); ++i) {
    if (program.buffers[i].resident) lives[i] = {0, end};
    if (lives[i].empty()) lives[i] = {};
  }
  return lives;
}

}  // namespace ebb
