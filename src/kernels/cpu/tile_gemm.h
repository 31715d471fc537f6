// Small matrix products inside one thread, for attention's tiles: c (M, N) [+]= a (M, K) b (K, N).
// a is read element by element through two strides, so it may be transposed. b is packed in panels
// of kPanel columns, each (K, panel width) and contiguous; the last panel is as narrow as it needs
// to be.
#pragma once

#include <cstdint>

#include "kernels/cpu/vec.h"

namespace ebb::cpu {

#if defined(__AVX512F__)
inline constexpr int kTileVecs = 4;  // 6 x 4 accumulators of the 32 registers
#else
inline constexpr int kTileVecs = 2;  // 6 x 2 accumulators of the 16 registers
#endif
inline constexpr int kTileRows = 6;
inline constexpr int64_t kPanel = kTileVecs * kLanes;

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Columns as stored: whole vectors.
inline int64_t padded(int64_t n) { return round_up(n, kLanes); }

// Floats of a packed (K, N).
inline int64_t packed_size(int64_t K, int64_t N) { return K * padded(N); }

// Packs b (K, N), element (k, j) at b[k * k_stride + j * j_stride], one of the strides being 1;
// columns past N are 0.
void pack_panels(float* packed, const float* b, int64_t k_stride, int64_t j_stride, int64_t K,
                 int64_t N);

// c has leading dimension ldc >= padded(N); columns up to padded(N) are written.
void tile_gemm(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_col,
               const float* packed, int64_t M, int64_t N, int64_t K, bool accumulate);

}  // namespace ebb::cpu
