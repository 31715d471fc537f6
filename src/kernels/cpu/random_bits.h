// Philox by vectors: the words of base/rng.h, several counters at a time.
#pragma once

#include "base/rng.h"
#include "kernels/cpu/vec.h"

namespace ebb::cpu {

struct WideProduct {
  VecU high, low;
};

// a b in each lane, 64 bits of it.
inline WideProduct multiply_wide(VecU a, uint32_t b) {
#if defined(__AVX512F__)
  const auto lanes = as_bits<__m512i>(a);
  const __m512i by = _mm512_maskz_set1_epi32(0xFFFF, static_cast<int>(b));
  const __m512i even = _mm512_maskz_mul_epu32(0xFF, lanes, by);
  const __m512i odd = _mm512_maskz_mul_epu32(0xFF, _mm512_maskz_srli_epi64(0xFF, lanes, 32), by);
  return {
      as_bits<VecU>(_mm512_mask_blend_epi32(0xAAAA, _mm512_maskz_srli_epi64(0xFF, even, 32), odd)),
      as_bits<VecU>(_mm512_mask_blend_epi32(0xAAAA, even, _mm512_maskz_slli_epi64(0xFF, odd, 32)))};
#else
  const auto lanes = as_bits<__m256i>(a);
  const __m256i by = _mm256_set1_epi32(static_cast<int>(b));
  const __m256i even = _mm256_mul_epu32(lanes, by);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(lanes, 32), by);
  return {as_bits<VecU>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA)),
          as_bits<VecU>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA))};
#endif
}

// 256 random words, a function of the key alone: word 64 j + c is word j of Philox's result for the
// counter 64 block + c.
inline constexpr int kRandomWords = 256;
inline void random_words(uint32_t* words, uint64_t seed, Stream stream, uint32_t step,
                         uint32_t sample, uint32_t block) {
  constexpr int kCounters = kRandomWords / 4;
  VecU lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<uint32_t>(i);
  for (uint32_t first = 0; first < kCounters; first += kLanes) {
    VecU c[4] = {lane + (block * kCounters + first), VecU{} + sample, VecU{} + step,
                 VecU{} + static_cast<uint32_t>(stream)};
    auto k0 = static_cast<uint32_t>(seed);
    auto k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const WideProduct p0 = multiply_wide(c[0], 0xD2511F53u);
      const WideProduct p1 = multiply_wide(c[2], 0xCD9E8D57u);
      c[0] = p1.high ^ c[1] ^ k0;
      c[1] = p1.low;
      c[2] = p0.high ^ c[3] ^ k1;
      c[3] = p0.low;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int j = 0; j < 4; ++j) std::memcpy(words + j * kCounters + first, &c[j], sizeof(VecU));
  }
}

}  // namespace ebb::cpu
