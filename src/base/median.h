// What a noisy machine hardly disturbs.
#pragma once

#include <algorithm>
#include <vector>

namespace ebb {

// Of an even number of values the larger of the middle two. There must be one at least.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace ebb
