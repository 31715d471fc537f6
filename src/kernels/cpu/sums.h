// Per-sample sums over tokens in a fixed order: a sample's tokens are cut into chunks of
// kChunkRows; each chunk sums into a partial row of scratch, and the partial rows are added in
// order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

inline constexpr int64_t kChunkRows = 32;
inline int64_t token_chunks(int64_t T) { return (T + kChunkRows - 1) / kChunkRows; }

// Scratch for `width` sums per sample.
inline int64_t token_sum_scratch(int64_t B, int64_t T, int64_t width) {
  return B * token_chunks(T) * width * static_cast<int64_t>(sizeof(float));
}

// body(sample, first row, end row, sums (width), set to 0) for every chunk; rows count over B*T.
// Then finish(sample, sums (width)) with the whole sums of each sample, which it may overwrite.
template <typename Body, typename Finish>
void sum_over_tokens(float* scratch, int64_t B, int64_t T, int64_t width, Body body,
                     Finish finish) {
  const int64_t chunks = token_chunks(T);
  parallel_range(B * chunks, 1, kChunkRows * width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / chunks;
      const int64_t first = i % chunks * kChunkRows;
      float* sums = scratch + i * width;
      std::memset(sums, 0, width * sizeof(float));
      body(sample, sample * T + first, sample * T + std::min(T, first + kChunkRows), sums);
    }
  });
  parallel_range(B, 1, chunks * width, [&](int64_t begin, int64_t end) {
    for (int64_t sample = begin; sample < end; ++sample) {
      float* total = scratch + sample * chunks * width;
      for (int64_t chunk = 1; chunk < chunks; ++chunk) {
        for (int64_t i = 0; i < width; ++i) total[i] += total[chunk * width + i];
      }
      finish(sample, total);
    }
  });
}

}  // namespace ebb::cpu
