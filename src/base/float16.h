// Numbers of 16 bits. They are for storage alone: arithmetic is done in fp32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace ebb {

// The upper half of an fp32: its range, 8 bits of precision.
struct Bf16 {
  uint16_t bits;
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  explicit operator double() const { return static_cast<float>(*this); }

  // The nearest, ties to even; NaN stays NaN.
  static Bf16 nearest(float x) {
    const auto word = std::bit_cast<uint32_t>(x);
    if (std::isnan(x)) return {static_cast<uint16_t>((word >> 16) | 0x40)};
    return {static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16)};
  }
};

#if defined(__clang__)
using Half = __fp16;  // clang 14, which fuzzes and checks, has _Float16 for few CPUs only
#else
using Half = _Float16;
#endif

// IEEE half precision: numbers from 6e-8 to 65504, 11 bits of precision.
struct F16 {
  uint16_t bits;
  explicit operator float() const { return static_cast<float>(__builtin_bit_cast(Half, bits)); }
  explicit operator double() const { return static_cast<float>(*this); }

  // The nearest, ties to even; too large is infinity.
  static F16 nearest(float x) { return {__builtin_bit_cast(uint16_t, static_cast<Half>(x))}; }
};

// x as an S: itself, or the nearest Bf16 or F16.
template <typename S>
S stored(float x) {
  if constexpr (std::is_same_v<S, float>) {
    return x;
  } else {
    return S::nearest(x);
  }
}

// An fp32 as the bf16 nearest to it and what that is off by, in units of its last place: both
// together are the fp32, bit for bit.
struct SplitFloat {
  Bf16 high;
  int16_t low;

  static SplitFloat of(float x) {
    const auto word = std::bit_cast<uint32_t>(x);
    const uint32_t high = (word + 0x8000) >> 16;
    return {{static_cast<uint16_t>(high)}, static_cast<int16_t>(word - (high << 16))};
  }
  float whole() const {
    return std::bit_cast<float>((uint32_t{high.bits} << 16) + static_cast<uint32_t>(int32_t{low}));
  }
};

}  // namespace ebb
