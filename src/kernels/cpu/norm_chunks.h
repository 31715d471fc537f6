// The sums that a tensor's norm is made of: squares of so many elements each, added up in order.
#pragma once

#include <cstdint>

#include "kernels/cpu/dot.h"

namespace ebb::cpu {

constexpr int64_t kNormChunk = 8192;  // elements summed into one partial result
constexpr int64_t norm_chunks(int64_t n) { return (n + kNormChunk - 1) / kNormChunk; }

// Of at most a chunk's elements.
template <typename S>
double chunk_squares(const S* g, int64_t n) {
  return dot(g, g, n);
}

}  // namespace ebb::cpu
