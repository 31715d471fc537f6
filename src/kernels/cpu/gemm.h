// Matrix products of linear layers, by all threads: c (M, N) = a (M, K) b (K, N).
#pragma once

#include <cstddef>
#include <functional>

#include "kernels/cpu/micro_gemm.h"

namespace ebb::cpu {

struct Gemm {
  int64_t M, N, K;
  Strided a;                    // (i, k); one of the strides is 1
  Strided b;                    // (k, j); one of the strides is 1
  const float* bias = nullptr;  // a row of N
  bool accumulate = false;      // c += a b
  float* sums = nullptr;        // M: the sums of a's rows too, or added to; of an a that is packed
  // Called by any thread for every part of c that is complete, while it is in the caches: `count`
  // elements from `first` on, in one row.
  std::function<void(int64_t first, int64_t count)> finish = {};
};

// Where blocks of a and b are packed. Of the product, the sizes and strides matter.
int64_t gemm_scratch_bytes(const Gemm& product);

// c has no gaps between its rows.
void gemm(float* c, const Gemm& product, std::byte* scratch);

}  // namespace ebb::cpu
