// What a kernel is given: an op's operands as pointers.
#pragma once

#include <cstddef>
#include <span>

#include "program/op.h"

namespace ebb {

// An op's buffers while it runs, in the order that the op's comment names them.
class Call {
 public:
  std::span<const std::byte* const> reads;
  std::span<std::byte*const> writes, updates;
  std::span<std::byte> scratch;
  const Scalars* scalars = nullptr;
  int64_t iteration = 0;  // of the loop that the op stands in

  template <typename T = float>
  const T* read(int i) const {
    return reinterpret_cast<const T*>(reads[i]);
  }
  // Of a call that is not made yet there are none.
  const void* read_or_null(size_t i) const { return i < reads.size() ? reads[i] : nullptr; }
  template <typename T = float>
  T* write(int i) const {
    return reinterpret_cast<T*>(writes[i]);
  }
  template <typename T = float>
  T* update(int i) const {
    return reinterpret_cast<T*>(updates[i]);
  }
};

}  // namespace ebb
