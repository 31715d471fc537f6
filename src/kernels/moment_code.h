// Moments of 8 bits: blocks of kMomentBlock share a scale, their largest magnitude, and each is a
// byte that stands for a share of it. The shares are a dynamic code: each tenth of the range below
// another has half as many, evenly spread, so that large moments are precise and small ones keep
// their size.
//
// The first moment is coded with its sign. Of the second the root is coded: that is what divides
// the first, and it has the first's range.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "program/ops.h"

namespace ebb {

class MomentCode {
 public:
  static constexpr int kZero = 128;  // the byte of 0 in a code with signs

  static const MomentCode& with_sign();     // 127 magnitudes from 1e-6 to 1, either sign, and 0
  static const MomentCode& without_sign();  // 254 magnitudes from 5.5e-7 to 1, and 0

  float value(uint8_t code) const { return values_[code]; }

  // The place of x, from 0 to 1, among the magnitudes, 0 being the first: of the two next to it the
  // upper if x is more than `share` of the way up to it. A half: the nearest.
  int magnitude(float x, float share) const {
    const int bucket = static_cast<int>(std::bit_cast<uint32_t>(x) >> kShift) - kFirstBucket;
    int below = bucket < 0 ? 0 : first_[bucket];
    below += static_cast<int>(x >= magnitudes_[below + 1]);
    return below + static_cast<int>(x - magnitudes_[below] > share * gaps_[below]);
  }

 private:
  // A bucket of fp32 numbers, told by exponent and 7 bits, is narrower than any gap of the code.
  static constexpr int kShift = 16;
  static constexpr int kFirstBucket = (127 - 22) << 7;
  static constexpr int kBuckets = (22 << 7) + 1;

  MomentCode(bool has_sign, int finest);
  std::array<float, 256> values_{};      // by code
  std::array<float, 257> magnitudes_{};  // growing; behind the last, what no x comes to
  std::array<float, 256> gaps_{};        // to the next magnitude
  std::array<uint8_t, kBuckets>
      first_{};  // the last magnitude that is not above the bucket's start
};

// One block: at most kMomentBlock codes and their scale.
struct CodedBlock {
  uint8_t* codes;
  float* scale;
};

void decode_first(float* m, const CodedBlock& from, int64_t n);
void decode_second(float* v, const CodedBlock& from, int64_t n);  // squares of what is coded

// share(i): of MomentCode::magnitude().
template <typename Share>
void encode_first(const CodedBlock& to, const float* m, int64_t n, Share share) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::abs(m[i]));
  *to.scale = most;
  const float per_scale = most > 0 ? 1 / most : 0;
  const MomentCode& code = MomentCode::with_sign();
  for (int64_t i = 0; i < n; ++i) {
    const int at = code.magnitude(std::min(1.0f, std::abs(m[i]) * per_scale), share(i));
    to.codes[i] = static_cast<uint8_t>(MomentCode::kZero + (m[i] < 0 ? -at : at));
  }
}

// What divides must not vanish: only 0 becomes 0.
template <typename Share>
void encode_second(const CodedBlock& to, const float* roots, int64_t n, Share share) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, roots[i]);
  *to.scale = most;
  const float per_scale = most > 0 ? 1 / most : 0;
  const MomentCode& code = MomentCode::without_sign();
  for (int64_t i = 0; i < n; ++i) {
    const int at = code.magnitude(std::min(1.0f, roots[i] * per_scale), share(i));
    to.codes[i] = static_cast<uint8_t>(std::max(at, static_cast<int>(roots[i] > 0)));
  }
}

}  // namespace ebb
