// Random ways through the blocks, each a legal one.
#pragma once

#include "model/keep.h"
#include "op_inputs.h"

namespace ebb {

inline int pick(Random& random, int count) {
  return static_cast<int>(random() % static_cast<uint64_t>(count));
}

inline KeepSet random_keep(Random& random) {
  switch (pick(random, 4)) {
    case 0:
      return KeepSet::all();
    case 1:
      return {};
    default:
      return KeepSet::of_bits(static_cast<uint16_t>(pick(random, 1 << kBlockSlots)));
  }
}

// Blocks first .. last forward and backward; the turn comes behind the model's last block.
inline void random_schedule(Schedule& to, int first, int last, bool top, Random& random) {
  if (first > last) {
    if (top) to.push_back({Action::Kind::turn, 0, {}});
    return;
  }
  const auto forward = [&](int block, KeepSet keep) {
    to.push_back({Action::Kind::forward, block, keep});
  };
  if (!top && first == last) {
    if (pick(random, 2) == 0) forward(first, random_keep(random));
  } else if (pick(random, 2) == 0) {
    forward(first, random_keep(random));
    random_schedule(to, first + 1, last, top, random);
  } else {  // on to a later block without keeping anything, back to it, then this part again
    const int on = first + 1 + pick(random, last - first + (top ? 1 : 0));
    for (int i = first; i < on; ++i) forward(i, {});
    random_schedule(to, on, last, top, random);
    random_schedule(to, first, on - 1, false, random);
    return;
  }
  to.push_back({Action::Kind::backward, first, {}});
}

inline Schedule random_schedule(int depth, Random& random) {
  Schedule made;
  random_schedule(made, 0, depth - 1, true, random);
  return made;
}

}  // namespace ebb
