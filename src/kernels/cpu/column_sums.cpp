// What scores from data are made of. Each column is summed by one thread, in double, token after
// token and sample after sample: neither threads nor micro-batches have a part in it.
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

namespace {

constexpr int64_t kTogether = 64;  // columns whose sums stay in the nearest cache

// Columns [first, first + count) of a sample, the first of whose tokens is at x.
void add_sample(double* sums, const float* x, const ColumnSums& op, int64_t first, int64_t count) {
  double size[kTogether] = {}, mean[kTogether] = {}, squares[kTogether] = {};
  for (int64_t t = 0; t < op.T; ++t) {
    const float* const row = x + t * op.N + first;
    for (int64_t i = 0; i < count; ++i) {
      const double value = row[i];
      size[i] += std::abs(value);
      mean[i] += value;
      squares[i] = std::fma(value, value, squares[i]);
    }
  }
  const double share = 1.0 / static_cast<double>(op.T);
  for (int64_t i = 0; i < count; ++i) {
    const double own = share * size[i];
    const auto add = [&](int part, double a, double b) {
      double& sum = sums[part * op.N + first + i];
      sum = std::fma(a, b, sum);
    };
    add(0, own, own);
    add(1, share, mean[i]);
    add(2, share, squares[i]);
  }
}

}  // namespace

void run(const ColumnSums& op, const Call& call) {
  constexpr int64_t kGrain = 16;  // floats of a cache line
  double* const sums = call.update<double>(0);
  parallel_range(op.N, kGrain, 4 * op.B * op.T, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kTogether) {
      const int64_t count = std::min(kTogether, end - first);
      for (int64_t b = 0; b < op.B; ++b) {
        add_sample(sums, call.read(0) + b * op.T * op.N, op, first, count);
      }
    }
  });
}

}  // namespace ebb::cpu
