#include "kernels/cpu/micro_gemm.h"

#include <algorithm>

namespace ebb::cpu {

namespace {

template <typename S>
void pack_rows(float* packed, const StridedOf<S>& b, int64_t K, int64_t columns, int64_t width) {
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t k = 0; k < K; ++k) {
    const S* in = b.data + k * b.row;
    float* out = packed + k * width;
    for (int64_t j = 0; j < whole; j += kLanes) store(out + j, load(in + j));
    if (whole < width) store(out + whole, load_part(in + whole, columns - whole));
  }
}

// Column j of the panel is a row of memory.
template <typename S>
void pack_columns(float* packed, const StridedOf<S>& b, int64_t K, int64_t columns, int64_t width) {
  for (int64_t first = 0; first < width; first += kLanes) {
    const int64_t real = std::clamp<int64_t>(columns - first, 0, kLanes);
    for (int64_t k = 0; k < K; k += kLanes) {
      const int64_t depth = std::min<int64_t>(kLanes, K - k);
      Vec block[kLanes] = {};
      for (int64_t j = 0; j < real; ++j) {
        const S* in = b.data + (first + j) * b.col + k;
        block[j] = depth == kLanes ? load(in) : load_part(in, depth);
      }
      transpose(block);
      for (int64_t i = 0; i < depth; ++i) store(packed + (k + i) * width + first, block[i]);
    }
  }
}

}  // namespace

template <typename S>
void pack_panel(float* packed, const StridedOf<S>& b, int64_t K, int64_t columns, int64_t width) {
  (b.col == 1 ? pack_rows<S> : pack_columns<S>)(packed, b, K, columns, width);
}

void pack_panel(Bf16Pair* packed, const StridedOf<Bf16>& b, int64_t K, int64_t columns,
                int64_t width) {
  if (b.col == 1) {
    for (int64_t k = 0; k < K; k += 2, packed += width) {
      pack_line(packed, b.data + k * b.row, b.row, k + 1 < K, columns);
      std::fill(packed + columns, packed + width, Bf16Pair{0});
    }
    return;
  }
  // Column j is a row of memory.
  for (int64_t first = 0; first < width; first += kLanes) {
    const int64_t real = std::clamp<int64_t>(columns - first, 0, kLanes);
    for (int64_t k = 0; k < K; k += 2 * kLanes) {
      const int64_t depth = std::min<int64_t>(2 * kLanes, K - k);
      Bf16Pair lines[kLanes][kLanes] = {};
      Vec block[kLanes];
      for (int64_t j = 0; j < real; ++j)
        pack_run(lines[j], b.data + (first + j) * b.col + k, depth);
      for (int j = 0; j < kLanes; ++j) block[j] = as_bits<Vec>(load(lines[j]).bits);
      transpose(block);
      for (int64_t i = 0; i < (depth + 1) / 2; ++i) {
        store(packed + (k / 2 + i) * width + first, VecPair{as_bits<VecU>(block[i])});
      }
    }
  }
}

template void pack_panel(float*, const StridedOf<float>&, int64_t, int64_t, int64_t);
template void pack_panel(float*, const StridedOf<Bf16>&, int64_t, int64_t, int64_t);
template void pack_panel(float*, const StridedOf<F16>&, int64_t, int64_t, int64_t);

}  // namespace ebb::cpu
