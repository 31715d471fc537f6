#include "kernels/moment_code.h"

#include <cmath>
#include <limits>

namespace ebb {

// finest: of the largest tenth, 2^finest values.
MomentCode::MomentCode(bool has_sign, int finest) {
  int count = 1;  // 0 is the first
  for (int tenth = 0; tenth <= 6; ++tenth) {
    const int values = 1 << (finest - 6 + tenth);
    for (int i = 1; i <= values; ++i) {
      magnitudes_[count++] =
          static_cast<float>(std::pow(10.0, tenth - 6) * (0.1 + 0.9 * i / values));
    }
  }
  for (int i = 0; i + 1 < count; ++i) gaps_[i] = magnitudes_[i + 1] - magnitudes_[i];
  for (size_t i = count; i < magnitudes_.size(); ++i) {
    magnitudes_[i] = std::numeric_limits<float>::infinity();
  }
  gaps_[count - 1] = std::numeric_limits<float>::infinity();
  for (int bucket = 0, at = 0; bucket < kBuckets; ++bucket) {
    const auto start = std::bit_cast<float>(static_cast<uint32_t>(bucket + kFirstBucket) << kShift);
    while (magnitudes_[at + 1] <= start) ++at;
    first_[bucket] = static_cast<uint8_t>(at);
  }
  for (int code = 0; code < 256; ++code) {
    const int at = has_sign ? std::abs(code - kZero) : code;
    if (at < count) values_[code] = has_sign && code < kZero ? -magnitudes_[at] : magnitudes_[at];
  }
}

const MomentCode& MomentCode::with_sign() {
  static const MomentCode code(true, 6);
  return code;
}

const MomentCode& MomentCode::without_sign() {
  static const MomentCode code(false, 7);
  return code;
}

void decode_first(float* m, const CodedBlock& from, int64_t n) {
  const MomentCode& code = MomentCode::with_sign();
  for (int64_t i = 0; i < n; ++i) m[i] = code.value(from.codes[i]) * *from.scale;
}

void decode_second(float* v, const CodedBlock& from, int64_t n) {
  const MomentCode& code = MomentCode::without_sign();
  for (int64_t i = 0; i < n; ++i) {
    const float root = code.value(from.codes[i]) * *from.scale;
    v[i] = root * root;
  }
}

}  // namespace ebb
