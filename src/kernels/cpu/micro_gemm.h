// The innermost product, for linear layers and for attention's tiles: kRows x kVecs vectors of c
// stay in registers while k runs. Every element of c is one chain of multiply-adds in the order of
// k, from its start value on. So its bits depend neither on how c is cut into tiles, blocks or
// threads, nor on where k is interrupted: c may be stored and taken up again.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/vec.h"

namespace ebb::cpu {

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// An element-wise view of a matrix: (i, k) lies at data[i * row + k * col].
template <typename S>
struct StridedOf {
  const S* data;
  int64_t row, col;
  StridedOf at(int64_t i, int64_t k) const { return {data + i * row + k * col, row, col}; }
};
using Strided = StridedOf<float>;

// What c starts from.
struct FromZero {
  Vec operator()(const float*, int) const { return Vec{}; }
};
struct FromC {
  Vec operator()(const float* c, int) const { return load(c); }
};
struct FromRow {  // the same row everywhere: a bias
  const float* row;
  Vec operator()(const float*, int vec) const { return load(row + vec * kLanes); }
};

// c (kRows, kVecs vectors) = start + a (kRows, K) b; b is packed, (K, kVecs vectors) and
// contiguous.
template <int kRows, int kVecs, typename Start>
inline void micro_gemm(float* c, int64_t ldc, const Strided& a, const float* b, int64_t K,
                       Start start) {
  Vec sums[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) sums[i][j] = start(c + i * ldc + j * kLanes, j);
  }
#pragma GCC unroll 4
  for (int64_t k = 0; k < K; ++k) {
    Vec row[kVecs];
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) row[j] = load(b + (k * kVecs + j) * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec x = splat(a.data[i * a.row + k * a.col]);
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) sums[i][j] = multiply_add(x, row[j], sums[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) store(c + i * ldc + j * kLanes, sums[i][j]);
  }
}

// Calls body with the constant `value`, which is from 1 to kMost.
template <int kMost, typename Body>
inline void with_constant(int64_t value, Body body) {
  if constexpr (kMost > 1) {
    if (value < kMost) return with_constant<kMost - 1>(value, body);
  }
  body(std::integral_constant<int, kMost>());
}

// Packs columns of b (K, columns), element (k, j) at data[k * row + j * col] with one of the
// strides 1, as (K, width): whole vectors, those past `columns` 0. S: float, Bf16 or F16.
template <typename S>
void pack_panel(float* packed, const StridedOf<S>& b, int64_t K, int64_t columns, int64_t width);

}  // namespace ebb::cpu
