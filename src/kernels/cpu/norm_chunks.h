// The sums that a tensor's norm is made of: squares of so many elements each, added up in order.
#pragma once

#include <cmath>
#include <cstdint>

namespace ebb::cpu {

constexpr int64_t kNormChunk = 8192;  // elements summed into one partial result
constexpr int64_t norm_chunks(int64_t n) { return (n + kNormChunk - 1) / kNormChunk; }

template <typename S>
void add_square(double& sum, S x) {
  const auto wide = static_cast<double>(x);
  sum = std::fma(wide, wide, sum);
}

// Of at most a chunk's elements.
template <typename S>
double chunk_squares(const S* g, int64_t n) {
  constexpr int kSums = 32;  // side by side: each waits for its own last addition
  double lanes[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int l = 0; l < kSums; ++l) add_square(lanes[l], g[i + l]);
  }
  for (; i < n; ++i) add_square(lanes[0], g[i]);
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace ebb::cpu
