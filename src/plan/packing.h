// Places blocks with lifetimes at offsets so that no two that are alive together overlap.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/lifetimes.h"

namespace ebb {

struct LiveBlock {
  int64_t size = 0;  // bytes, a multiple of kAlignment
  Lifetime life;
};

inline constexpr int64_t kAlignment = 64;
inline int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Packing {
  std::vector<int64_t> offsets;
  int64_t peak = 0;
};

// No placement can be below this: the most bytes alive at one op.
int64_t liveness_bound(const std::vector<LiveBlock>& blocks);
int fullest_op(const std::vector<LiveBlock>& blocks);  // the first op at which that many are alive

// Greedy first; where that is above the bound, a search over orders of placement. The result
// depends on the blocks alone, never on time.
Packing pack(const std::vector<LiveBlock>& blocks);

}  // namespace ebb
