// One formula for every element, whatever its neighbours.
#pragma once

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace ebb::cpu {

// body over the lanes of [0, n), split over threads at whole vectors.
template <typename Body>
void each_lane(int64_t n, Body body) {
  parallel_range(n, 4096, 1, [&](int64_t begin, int64_t end) { for_lanes(begin, end, body); });
}

}  // namespace ebb::cpu
