#include "kernels/cpu/micro_gemm.h"

#include <algorithm>

namespace ebb::cpu {

namespace {

void pack_rows(float* packed, const Strided& b, int64_t K, int64_t columns, int64_t width) {
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t k = 0; k < K; ++k) {
    const float* in = b.data + k * b.row;
    float* out = packed + k * width;
    for (int64_t j = 0; j < whole; j += kLanes) store(out + j, load(in + j));
    if (whole < width) store(out + whole, load_part(in + whole, columns - whole));
  }
}

// Column j of the panel is a row of memory.
void pack_columns(float* packed, const Strided& b, int64_t K, int64_t columns, int64_t width) {
  for (int64_t first = 0; first < width; first += kLanes) {
    const int64_t real = std::clamp<int64_t>(columns - first, 0, kLanes);
    for (int64_t k = 0; k < K; k += kLanes) {
      const int64_t depth = std::min<int64_t>(kLanes, K - k);
      Vec block[kLanes] = {};
      for (int64_t j = 0; j < real; ++j) {
        const float* in = b.data + (first + j) * b.col + k;
        block[j] = depth == kLanes ? load(in) : load_part(in, depth);
      }
      transpose(block);
      for (int64_t i = 0; i < depth; ++i) store(packed + (k + i) * width + first, block[i]);
    }
  }
}

}  // namespace

void pack_panel(float* packed, const Strided& b, int64_t K, int64_t columns, int64_t width) {
  (b.col == 1 ? pack_rows : pack_columns)(packed, b, K, columns, width);
}

}  // namespace ebb::cpu
