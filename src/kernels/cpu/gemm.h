// Matrix products of linear layers, by all threads: c (M, N) = a (M, K) b (K, N).
#pragma once

#include <cstddef>
#include <functional>

#include "kernels/cpu/masked.h"
#include "kernels/cpu/micro_gemm.h"

namespace ebb::cpu {

// (i, k) is element i * row + k * col; one of the strides is 1. With a mask, that is its place
// among all elements, of which only those that are there are stored.
struct Matrix {
  const void* data;
  DType type;  // f32, bf16 or f16
  int64_t row, col;
  Mask mask = {};           // of b,
  bool transposed = false;  // whose rows are the columns of what is multiplied

  template <typename S>
  StridedOf<S> at(int64_t i, int64_t k) const {
    return StridedOf<S>{static_cast<const S*>(data), row, col}.at(i, k);
  }
};

struct Gemm {
  int64_t M, N, K;
  Matrix a;                     // (i, k)
  Matrix b;                     // (k, j)
  const float* bias = nullptr;  // a row of N
  bool accumulate = false;      // c += a b
  float* sums = nullptr;        // M: the sums of a's rows too, or added to; of an a that is packed
  DType c = DType::f32;         // otherwise sums are fp32 until they are complete
  bool passed_on = false;       // there is no c: finish is given its elements, and nothing stored
  Mask c_mask = {};             // only what is there is stored
  // Called by any thread for every part of c that is complete, while it is in the caches: `count`
  // elements from `first` on, in one row. It may change the values; c gets what it leaves there.
  std::function<void(int64_t first, float* values, int64_t count)> finish = {};
  const void* beside = nullptr;  // what finish reads, as large and of the same type as c
};

// Columns of c that one pass over a packed panel of b makes.
int64_t gemm_panel();

// Where blocks of a and b are packed. Of the product, the sizes and strides matter.
int64_t gemm_scratch_bytes(const Gemm& product);

// c has no gaps between its rows.
void gemm(void* c, const Gemm& product, std::byte* scratch);

}  // namespace ebb::cpu
