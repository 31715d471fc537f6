// The compiler's own vectors, as wide as the machine's registers: AVX-512 or AVX2, no less. The
// products and all other fp32 arithmetic of the kernels are written with them; sums in double, the
// losses' logarithms and what runs once for a sample are plain C++.
//
// The compiler fuses nothing by itself (-ffp-contract=off): where a product and a sum are to be
// rounded once, it says multiply_add, or std::fma where there are no vectors.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/float16.h"
#include "program/dtype.h"

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "Ebb's kernels need at least x86-64-v3 (AVX2, FMA, F16C): -march=x86-64-v3 or newer"
#endif

namespace ebb::cpu {

// Of AVX-512's intrinsics the masked ones are used: g++ 12 warns of the others by mistake.
#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
#else
inline constexpr int kVecBytes = 32;
#endif
inline constexpr int kLanes = kVecBytes / 4;

typedef float Vec __attribute__((vector_size(kVecBytes)));
typedef int32_t VecI __attribute__((vector_size(kVecBytes)));
typedef uint32_t VecU __attribute__((vector_size(kVecBytes)));
typedef uint16_t VecHalf __attribute__((vector_size(kVecBytes / 2)));  // as many lanes of 16 bits

template <typename To, typename From>
inline To as_bits(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &v, sizeof to);
  return to;
}

// x - 0 is x for every x, so this is the broadcast alone; x + 0 would be an addition, for -0.
inline Vec splat(float x) { return x - Vec{}; }

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

// Numbers of 16 bits are widened when they are loaded, and rounded to the nearest when they are
// stored.
inline Vec load(const Bf16* p) {
  VecHalf half;
  std::memcpy(&half, p, sizeof half);
  return as_bits<Vec>(__builtin_convertvector(half, VecU) << 16);
}

// The bits of the nearest bf16, ties to even, in the lower half of each lane.
inline VecU bf16_bits(Vec v) {
  const auto word = as_bits<VecU>(v);
  const VecU nearest = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
  const auto is_nan = as_bits<VecU>(v != v);
  return (is_nan & ((word >> 16) | 0x40)) | (~is_nan & nearest);
}

inline void store(Bf16* p, Vec v) {
  const VecHalf half = __builtin_convertvector(bf16_bits(v), VecHalf);
  std::memcpy(p, &half, sizeof half);
}

inline Vec load(const F16* p) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#else
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#endif
}

inline void store(F16* p, Vec v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(0xFFFF, v, _MM_FROUND_TO_NEAREST_INT));
#else
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#endif
}

// What v becomes when it is stored as an S and loaded again.
template <typename S>
inline Vec as_stored(Vec v) {
  if constexpr (std::is_same_v<S, float>) {
    return v;
  } else if constexpr (std::is_same_v<S, Bf16>) {
    return as_bits<Vec>(bf16_bits(v) << 16);
  } else {
    S lanes[kLanes];
    store(lanes, v);
    return load(lanes);
  }
}

// A bit for each lane of a comparison's result: 1 where it is true, the first lane's the lowest.
inline uint32_t lane_bits(VecI truth) {
#if defined(__AVX512F__)
  const auto lanes = as_bits<__m512i>(truth);
  return _mm512_mask_test_epi32_mask(0xFFFF, lanes, lanes);
#else
  return static_cast<uint32_t>(_mm256_movemask_ps(as_bits<__m256>(truth)));
#endif
}

// The first n < kLanes elements; the other lanes are 0.
template <typename S>
inline Vec load_part(const S* p, int64_t n) {
  S lanes[kLanes] = {};
  std::memcpy(lanes, p, n * sizeof(S));
  return load(lanes);
}

template <typename S, typename V>
inline void store_part(S* p, V v, int64_t n) {
  S lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, n * sizeof(S));
}

// Calls body with a value of the type that activations and weights are stored as.
template <typename Body>
inline void with_storage(DType type, Body body) {
  switch (type) {
    case DType::bf16:
      return body(Bf16{});
    case DType::f16:
      return body(F16{});
    default:
      return body(float{});
  }
}

// b where either is NaN, as the machine's own instructions do it.
#if defined(__AVX512F__)
inline Vec min(Vec a, Vec b) { return _mm512_maskz_min_ps(0xFFFF, a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_maskz_max_ps(0xFFFF, a, b); }
#else
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
#endif

// a b + c, a b - c and c - a b, each rounded once.
#if defined(__AVX512F__)
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec multiply_less(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }
inline Vec less_product(Vec c, Vec a, Vec b) { return _mm512_fnmadd_ps(a, b, c); }
#else
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec multiply_less(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }
inline Vec less_product(Vec c, Vec a, Vec b) { return _mm256_fnmadd_ps(a, b, c); }
#endif

inline Vec sqrt(Vec x) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_ps(0xFFFF, x);
#else
  return _mm256_sqrt_ps(x);
#endif
}

// Lane i is lane Order::of(i) of a, or of b where that is kLanes or more.
template <typename Order, int... kLane>
inline Vec shuffle(Vec a, Vec b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b, Order::of(kLane)...);
}
template <typename Order>
inline Vec shuffle(Vec a, Vec b) {
  return shuffle<Order>(a, b, std::make_integer_sequence<int, kLanes>());
}

template <int kBy>
struct Rotated {
  static constexpr int of(int i) { return (i + kBy) % kLanes; }
};

// All lanes into one, in a fixed order: halves, quarters, ...
template <int kWidth = kLanes / 2, typename Join>
inline float fold(Vec v, Join join) {
  if constexpr (kWidth == 0)
    return v[0];
  else
    return fold<kWidth / 2>(join(v, shuffle<Rotated<kWidth>>(v, v)), join);
}

inline float sum(Vec v) {
  return fold(v, [](Vec a, Vec b) { return a + b; });
}
inline float max_lane(Vec v) {
  return fold(v, [](Vec a, Vec b) { return max(a, b); });
}

// Of two rows that lie kWidth apart, squares of that width change places across the diagonal.
template <int kWidth>
struct UpperRow {
  static constexpr int of(int j) { return j & kWidth ? kLanes + j - kWidth : j; }
};
template <int kWidth>
struct LowerRow {
  static constexpr int of(int j) { return j & kWidth ? kLanes + j : j + kWidth; }
};

// rows[i][j] becomes rows[j][i].
template <int kWidth = kLanes / 2>
inline void transpose(Vec (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i & kWidth) continue;
    const Vec upper = rows[i];
    const Vec lower = rows[i + kWidth];
    rows[i] = shuffle<UpperRow<kWidth>>(upper, lower);
    rows[i + kWidth] = shuffle<LowerRow<kWidth>>(upper, lower);
  }
  if constexpr (kWidth > 1) transpose<kWidth / 2>(rows);
}

// The whole number nearest to x times `by`, where that is below 2^22.
inline Vec nearest(Vec x, Vec by = splat(1.0f)) {
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it leaves no digits behind the point
  return multiply_add(x, by, magic) - magic;
}

// The highest power's coefficient first.
template <typename... Coefficients>
inline Vec polynomial(Vec x, float highest, Coefficients... lower) {
  Vec p = splat(highest);
  ((p = multiply_add(p, x, splat(lower))), ...);
  return p;
}

// p 2^n for whole n from -126 to 127 and p near 1: added to its exponent. NaN stays NaN.
inline Vec times_power(Vec p, Vec n) {
  return as_bits<Vec>(as_bits<VecI>(p) + (__builtin_convertvector(n, VecI) << 23));
}

// 2^x, within 2 ulp on [-125, 127]; below it 0 to within 3e-38, above it the value at 127. NaN
// stays NaN.
inline Vec exp2(Vec x) {
  const Vec clamped = max(splat(-126.0f), min(splat(127.0f), x));
  const Vec n = nearest(clamped);
  const Vec r = clamped - n;
  return times_power(polynomial(r, 1.5345812e-4f, 1.3399931e-3f, 9.6184890e-3f, 5.5503286e-2f,
                                2.4022646e-1f, 6.9314720e-1f, 1.0f),
                     n);
}

// e^x, within 2 ulp on [-86.6, 88.3]; below it 0 to within 3e-38, above it the value at 88.3.
// NaN stays NaN.
inline Vec exp(Vec x) {
  const Vec clamped = max(splat(-87.3f), min(splat(88.3f), x));
  const Vec n = nearest(clamped, splat(1.44269504f));
  // ln 2 in two parts: n times the first is exact.
  const Vec near = less_product(clamped, n, splat(0.693359375f));
  const Vec r = less_product(near, n, splat(-2.12194440e-4f));
  const Vec p = polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                           4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  return times_power(multiply_add(p * r, r, r) + splat(1.0f), n);
}

// 1 / x within 2 ulp for 2^-126 <= |x| <= 2^126: an estimate and Newton's step, no division.
inline Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
  Vec r = _mm512_maskz_rcp14_ps(0xFFFF, x);
#else
  Vec r = _mm256_rcp_ps(x);
  r = r * less_product(splat(2.0f), x, r);
#endif
  return multiply_add(r, less_product(splat(1.0f), x, r), r);
}

// Within 4 ulp. Below -87 it is 0 to within 2e-38.
inline Vec sigmoid(Vec x) {
  // Below 2^126, so that its reciprocal is a normal number.
  return reciprocal(splat(1.0f) + exp(max(splat(-87.0f), x) * splat(-1.0f)));
}

// body(i, get, put) for every vector of [begin, end), i being its first element: get(p) reads from
// p on, put(p, v) writes there, and both keep to the elements that exist. Lanes of the last vector
// that do not are 0 when read.
template <typename Body>
inline void for_lanes(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    body(
        i, [](const auto* p) { return load(p); }, [](auto* p, auto v) { store(p, v); });
  }
  if (i < end) {
    const int64_t rest = end - i;
    body(
        i, [rest](const auto* p) { return load_part(p, rest); },
        [rest](auto* p, auto v) { store_part(p, v, rest); });
  }
}

// n numbers as fp32.
template <typename S>
inline void widen(float* to, const S* from, int64_t n) {
  for_lanes(0, n, [&](int64_t i, auto get, auto put) { put(to + i, get(from + i)); });
}

}  // namespace ebb::cpu
