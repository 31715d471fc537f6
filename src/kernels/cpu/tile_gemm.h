// Small matrix products inside one thread, for attention's tiles: c (M, N) [+]= a (M, K) b (K, N).
// b is packed in panels of kPanel columns, each (K, panel width) and contiguous; the last panel is
// as narrow as it needs to be.
#pragma once

#include "kernels/cpu/micro_gemm.h"

namespace ebb::cpu {

#if defined(__AVX512F__)
inline constexpr int kTileVecs = 4;  // 6 x 4 sums in the 32 registers
#else
inline constexpr int kTileVecs = 2;  // 6 x 2 sums in the 16 registers
#endif
inline constexpr int kTileRows = 6;
inline constexpr int64_t kPanel = kTileVecs * kLanes;

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
