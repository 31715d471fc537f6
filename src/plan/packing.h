// Places blocks with lifetimes at offsets so that no two that are alive together overlap.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/lifetimes.h"
#include "program/device.h"

namespace ebb {

struct LiveBlock {
  int64_t size = 0;  // bytes, aligned
  Lifetime life;
};

struct Packing {
  std::vector<int64_t> offsets;
  int64_t peak = 0;
};

// No placement can be below this: the most bytes alive at one op.
int64_t liveness_bound(const std::vector<LiveBlock>& blocks);
int fullest_op(const std::vector<LiveBlock>& blocks);  // the first op at which that many are alive

// Offsets count from `start`, and nothing lies across a multiple of `piece_bytes` from there back
// to the memory's begin.
struct PackingSpace {
  int64_t start = 0;
  int64_t piece_bytes = Limits{}.piece_bytes;  // as a device has it
  // Of the orders that are tried where the first few leave gaps: one part in so many.
  int haste = 1;
};

// Greedy first; where that is above the bound, a search over orders of placement. The result
// depends on the blocks alone, never on time.
Packing pack(const std::vector<LiveBlock>& blocks, const PackingSpace& space = {});

}  // namespace ebb
