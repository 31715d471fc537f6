// Sums of products in double, in an order of their own: no thread and no neighbour changes them.
#pragma once

#include <cmath>
#include <cstdint>

namespace ebb::cpu {

template <typename S>
void add_product(double& sum, S x, S y) {
  sum = std::fma(static_cast<double>(x), static_cast<double>(y), sum);
}

template <typename S>
double dot(const S* a, const S* b, int64_t n) {
  constexpr int kSums = 32;  // side by side: each waits for its own last addition
  double lanes[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int l = 0; l < kSums; ++l) add_product(lanes[l], a[i + l], b[i + l]);
  }
  for (; i < n; ++i) add_product(lanes[0], a[i], b[i]);
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace ebb::cpu
