#include "kernels/cpu/orthonormal.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/dot.h"
#include "kernels/cpu/parallel.h"
#include "program/ops_galore.h"

namespace ebb::cpu {

namespace {

constexpr int64_t kPiece = 64;  // elements of a row that are changed together
constexpr int64_t kQuick = 16;  // multiply-adds of what the caches hold, as long as other work is

double length(const float* row, int64_t n) { return std::sqrt(dot(row, row, n)); }

// Row `count` without what it has of the rows before it.
void take_off(float* rows, int64_t count, int64_t n, double* shares) {
  float* row = rows + count * n;
  parallel_range(count, 1, n / kQuick, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) shares[i] = dot(rows + i * n, row, n);
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
