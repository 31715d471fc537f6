#include "kernels/cpu/tile_gemm.h"

#include <algorithm>

namespace ebb::cpu {

namespace {

template <int kVecs, typename Start>
void multiply_panel(float* c, int64_t ldc, const Strided& a, const float* b, int64_t M, int64_t K,
                    Start start) {
  for (int64_t i = 0; i < M; i += kTileRows) {
    with_constant<kTileRows>(std::min<int64_t>(kTileRows, M - i), [&](auto rows) {
      micro_gemm<rows, kVecs>(c + i * ldc, ldc, a.at(i, 0), b, K, start);
    });
  }
}

template <typename Start>
void multiply(float* c, int64_t ldc, const Strided& a, const float* packed, int64_t M, int64_t N,
              int64_t K, Start start) {
  const int64_t stored = padded(N);
  for (int64_t first = 0; first < stored; first += kPanel) {
    with_constant<kTileVecs>(std::min(kPanel, stored - first) / kLanes, [&](auto vecs) {
      multiply_panel<vecs>(c + first, ldc, a, packed + first * K, M, K, start);
    });
  }
}

}  // namespace

void pack_panels(float* packed, const float* b, int64_t k_stride, int64_t j_stride, int64_t K,
                 int64_t N) {
  const Strided whole{b, k_stride, j_stride};
  const int64_t stored = padded(N);
  for (int64_t first = 0; first < stored; first += kPanel) {
    const int64_t width = std::min(kPanel, stored - first);
    pack_panel(packed + first * K, whole.at(0, first), K, std::min(width, N - first), width);
  }
}

void tile_gemm(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_col,
               const float* packed, int64_t M, int64_t N, int64_t K, bool accumulate) {
  const Strided rows{a, a_row, a_col};
  if (accumulate) {
    multiply(c, ldc, rows, packed, M, N, K, FromC());
  } else {
    multiply(c, ldc, rows, packed, M, N, K, FromZero());
  }
}

}  // namespace ebb::cpu
