#include "kernels/cpu/tile_gemm.h"

#include <algorithm>

namespace ebb::cpu {

namespace {

template <int kRows, int kVecs>
void micro(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_col, const float* b,
           int64_t K, bool accumulate) {
  Vec acc[kRows][kVecs];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVecs; ++j) {
      acc[i][j] = accumulate ? load(c + i * ldc + j * kLanes) : Vec{};
    }
  }
  for (int64_t k = 0; k < K; ++k) {
    Vec row[kVecs];
    for (int j = 0; j < kVecs; ++j) row[j] = load(b + (k * kVecs + j) * kLanes);
    for (int i = 0; i < kRows; ++i) {
      const Vec x = splat(a[i * a_row + k * a_col]);
      for (int j = 0; j < kVecs; ++j) acc[i][j] += x * row[j];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVecs; ++j) store(c + i * ldc + j * kLanes, acc[i][j]);
  }
}

template <int kVecs>
void panel(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_col, const float* b,
           int64_t M, int64_t K, bool accumulate) {
  int64_t i = 0;
  for (; i + kTileRows <= M; i += kTileRows) {
    micro<kTileRows, kVecs>(c + i * ldc, ldc, a + i * a_row, a_row, a_col, b, K, accumulate);
  }
  float* rest_c = c + i * ldc;
  const float* rest_a = a + i * a_row;
  switch (M - i) {
    case 5:
      return micro<5, kVecs>(rest_c, ldc, rest_a, a_row, a_col, b, K, accumulate);
    case 4:
      return micro<4, kVecs>(rest_c, ldc, rest_a, a_row, a_col, b, K, accumulate);
    case 3:
      return micro<3, kVecs>(rest_c, ldc, rest_a, a_row, a_col, b, K, accumulate);
    case 2:
      return micro<2, kVecs>(rest_c, ldc, rest_a, a_row, a_col, b, K, accumulate);
    case 1:
      return micro<1, kVecs>(rest_c, ldc, rest_a, a_row, a_col, b, K, accumulate);
    default:
      return;
  }
}

}  // namespace

namespace {

// (rows, K) with rows `stride` apart becomes (K, width): column j is row j, columns past `rows` are
// 0.
void pack_transposed(float* packed, const float* b, int64_t stride, int64_t K, int64_t rows,
                     int64_t width) {
  for (int64_t first = 0; first < width; first += kLanes) {
    const int64_t real = std::clamp<int64_t>(rows - first, 0, kLanes);
    for (int64_t k = 0; k < K; k += kLanes) {
      const int64_t depth = std::min<int64_t>(kLanes, K - k);
      Vec block[kLanes] = {};
      for (int64_t j = 0; j < real; ++j) {
        const float* in = b + (first + j) * stride + k;
        block[j] = depth == kLanes ? load(in) : load_part(in, depth);
      }
      transpose(block);
      for (int64_t i = 0; i < depth; ++i) store(packed + (k + i) * width + first, block[i]);
    }
  }
}

}  // namespace

void pack_panels(float* packed, const float* b, int64_t k_stride, int64_t j_stride, int64_t K,
                 int64_t N) {
  const int64_t stored = padded(N);
  for (int64_t first = 0; first < stored; first += kPanel) {
    const int64_t width = std::min(kPanel, stored - first);
    const int64_t real = std::min(width, N - first);
    float* out = packed + first * K;
    if (j_stride == 1) {
      for (int64_t k = 0; k < K; ++k) {
        const float* in = b + k * k_stride + first;
        for (int64_t j = 0; j < real; ++j) out[k * width + j] = in[j];
        for (int64_t j = real; j < width; ++j) out[k * width + j] = 0;
      }
    } else {
      pack_transposed(out, b + first * j_stride, j_stride, K, real, width);
    }
  }
}

void tile_gemm(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_col,
               const float* packed, int64_t M, int64_t N, int64_t K, bool accumulate) {
  const int64_t stored = padded(N);
  for (int64_t first = 0; first < stored; first += kPanel) {
    const int64_t vecs = std::min(kPanel, stored - first) / kLanes;
    const float* b = packed + first * K;
    float* out = c + first;
    switch (vecs) {
      case 1:
        panel<1>(out, ldc, a, a_row, a_col, b, M, K, accumulate);
        break;
      case 2:
        panel<2>(out, ldc, a, a_row, a_col, b, M, K, accumulate);
        break;
      case 3:
        panel<3>(out, ldc, a, a_row, a_col, b, M, K, accumulate);
        break;
      default:
        panel<kTileVecs>(out, ldc, a, a_row, a_col, b, M, K, accumulate);
        break;
    }
  }
}

}  // namespace ebb::cpu
