#include "kernels/cpu/orthonormal.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "program/ops_galore.h"

namespace ebb::cpu {

namespace {

constexpr int kSums = 32;       // side by side: each waits for its own last addition
constexpr int64_t kPiece = 64;  // elements of a row that are changed together
constexpr int64_t kQuick = 16;  // multiply-adds of what the caches hold, as long as other work is

double product(const float* a, const float* b, int64_t n) {
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int l = 0; l < kSums; ++l) {
      sums[l] = std::fma(static_cast<double>(a[i + l]), static_cast<double>(b[i + l]), sums[l]);
    }
  }
  for (; i < n; ++i)
    sums[0] = std::fma(static_cast<double>(a[i]), static_cast<double>(b[i]), sums[0]);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

double length(const float* row, int64_t n) { return std::sqrt(product(row, row, n)); }

// Row `count` without what it has of the rows before it.
void take_off(float* rows, int64_t count, int64_t n, double* shares) {
  float* row = rows + count * n;
  parallel_range(count, 1, n / kQuick, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) shares[i] = product(rows + i * n, row, n);
  });
  parallel_range(n, kPiece, count / kQuick, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kPiece) {
      const int64_t piece = std::min(kPiece, end - first);
      double left[kPiece] = {};
      for (int64_t k = 0; k < piece; ++k) left[k] = static_cast<double>(row[first + k]);
      for (int64_t i = 0; i < count; ++i) {
        const float* other = rows + i * n + first;
        const double share = -shares[i];
        for (int64_t k = 0; k < piece; ++k) {
          left[k] = std::fma(share, static_cast<double>(other[k]), left[k]);
        }
      }
      for (int64_t k = 0; k < piece; ++k) row[first + k] = static_cast<float>(left[k]);
    }
  });
}

// Whether anything is left of row `count` but rounding.
bool stands_by_itself(float* rows, int64_t count, int64_t n, double* shares) {
  float* row = rows + count * n;
  const double before = length(row, n);
  if (!(before > GaloreAdamW::kVanishing)) return false;
  const auto to_unit = static_cast<float>(1 / before);
  for (int64_t k = 0; k < n; ++k) row[k] *= to_unit;
  take_off(rows, count, n, shares);
  take_off(rows, count, n, shares);
  const double left = length(row, n);
  if (!(left > GaloreAdamW::kDependent)) return false;
  for (int64_t k = 0; k < n; ++k) row[k] = static_cast<float>(static_cast<double>(row[k]) / left);
  return true;
}

}  // namespace

void make_orthonormal(float* rows, int64_t count, int64_t n, double* scratch, const NextRow& next) {
  for (int64_t i = 0; i < count; ++i) {
    while (!stands_by_itself(rows, i, n, scratch)) next(rows + i * n);
  }
}

}  // namespace ebb::cpu
