// The innermost product, for linear layers and for attention's tiles: kRows x kVecs vectors of c
// stay in registers while k runs. Every element of c is one chain of multiply-adds in the order of
// k, from its start value on. So its bits depend neither on how c is cut into tiles, blocks or
// threads, nor on where k is interrupted: c may be stored and taken up again.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/bf16_pair.h"

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

// AddressSanitizer keeps the sums in memory whether loops are unrolled or not, and compiles
// unrolled ones for a minute.
#if defined(__SANITIZE_ADDRESS__)
#define EBB_UNROLL(times)
#else
#define EBB_PRAGMA(words) _Pragma(#words)
#define EBB_UNROLL(times) EBB_PRAGMA(GCC unroll times)
#endif

// How many elements of k are multiplied at once, as one unit: a float, or a pair of bf16.
template <typename Unit>
inline constexpr int64_t kUnitDepth = 1;
template <>
inline constexpr int64_t kUnitDepth<Bf16Pair> = 2;

// c (kRows, kVecs vectors) = start + a (kRows, K units) b; b is packed, (K units, kVecs vectors)
// and contiguous.
template <int kRows, int kVecs, typename Unit, typename Start>
inline void micro_gemm(float* c, int64_t ldc, const StridedOf<Unit>& a, const Unit* b, int64_t K,
                       Start start) {
  Vec sums[kRows][kVecs];
  EBB_UNROLL(16)
  for (int i = 0; i < kRows; ++i) {
    EBB_UNROLL(4)
    for (int j = 0; j < kVecs; ++j) sums[i][j] = start(c + i * ldc + j * kLanes, j);
  }
  EBB_UNROLL(4)
  for (int64_t k = 0; k < K; ++k) {
    decltype(load(b)) row[kVecs];
    EBB_UNROLL(4)
    for (int j = 0; j < kVecs; ++j) row[j] = load(b + (k * kVecs + j) * kLanes);
    EBB_UNROLL(16)
    for (int i = 0; i < kRows; ++i) {
      const auto x = splat(a.data[i * a.row + k * a.col]);
      EBB_UNROLL(4)
      for (int j = 0; j < kVecs; ++j) sums[i][j] = multiply_add(x, row[j], sums[i][j]);
    }
  }
  EBB_UNROLL(16)
  for (int i = 0; i < kRows; ++i) {
    EBB_UNROLL(4)
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

// The same as (K / 2, width) pairs; behind an odd K a pair ends with 0.
void pack_panel(Bf16Pair* packed, const StridedOf<Bf16>& b, int64_t K, int64_t columns,
                int64_t width);

// n numbers of one k, and of the k after it where it is there, which lies `next` further on.
template <typename S>
inline void pack_line(float* line, const S* first, int64_t /*next*/, bool /*has_next*/, int64_t n) {
  widen(line, first, n);
}
inline void pack_line(Bf16Pair* line, const Bf16* first, int64_t next, bool has_next, int64_t n) {
  for_lanes(0, n, [&](int64_t i, auto get, auto put) {
    put(line + i, paired(get(first + i), has_next ? get(first + next + i) : Vec{}));
  });
}

// n numbers that follow each other in k.
template <typename S>
inline void pack_run(float* units, const S* from, int64_t n) {
  widen(units, from, n);
}
inline void pack_run(Bf16Pair* units, const Bf16* from, int64_t n) {
  constexpr int64_t kEach = 2 * kLanes;
  int64_t k = 0;
  for (; k + kEach <= n; k += kEach, units += kLanes) store(units, paired(from + k));
  for (; k < n; k += 2, ++units) {
    const uint32_t second = k + 1 < n ? from[k + 1].bits : 0;
    *units = {uint32_t{from[k].bits} << 16 | second};
  }
}

}  // namespace ebb::cpu
