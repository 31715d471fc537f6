// The twin of what scores are made of.
#pragma once

#include "kernels/reference/refs.h"

namespace ebb {

template <typename T>
void reference(const ColumnSums& op, const Refs<T>& r) {
  const double share = 1.0 / static_cast<double>(op.T);
  for (int64_t b = 0; b < op.B; ++b) {
    for (int64_t n = 0; n < op.N; ++n) {
      T size = 0, mean = 0, squares = 0;
      for (int64_t t = 0; t < op.T; ++t) {
        const T x = r.reads[0][(b * op.T + t) * op.N + n];
        size += real_part(x) < 0 ? T(-x) : x;
        mean += x;
        squares += square(x);
      }
      r.updates[0][n] += square(T(share * size));
      r.updates[0][op.N + n] += share * mean;
      r.updates[0][2 * op.N + n] += share * squares;
    }
  }
}

}  // namespace ebb
