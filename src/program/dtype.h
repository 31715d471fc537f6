// How the elements of a buffer are stored. Arithmetic is always done in fp32.
#pragma once

#include <cstdint>

namespace ebb {

enum class DType : uint8_t {
  f32,
  f64,
  i32,
  u8,
  bf16,
  f16,
  i16,
};
int64_t dtype_bytes(DType type);
const char* dtype_name(DType type);

}  // namespace ebb
