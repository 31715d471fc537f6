#include "program/buffer.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace ebb {

const char* purpose_name(Purpose purpose) {
  constexpr const char* kNames[kPurposes] = {"weight", "gradient",   "moment",
                                             "ema",    "activation", "scratch",
                                             "data",   "staging",    "exchange"};
  return kNames[static_cast<int>(purpose)];
}

int64_t dtype_bytes(DType type) {
  switch (type) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
      return 8;
    case DType::u8:
      return 1;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
      return 2;
  }
  throw Bug("unknown dtype");
}

const char* dtype_name(DType type) {
  constexpr const char* kNames[] = {"f32", "f64", "i32", "u8", "bf16", "f16", "i16"};
  return kNames[static_cast<int>(type)];
}

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t side : shape) {
    int64_t product = 0;
    if (side < 0 || __builtin_mul_overflow(count, side, &product)) {
      fail(Exit::usage, fmt::format("shape {} has too many elements to count", shape_text(shape)),
           "choose a smaller model, image or batch");
    }
    count = product;
  }
  return count;
}

std::string shape_text(const Shape& shape) { return fmt::format("({})", fmt::join(shape, ",")); }

}  // namespace ebb
