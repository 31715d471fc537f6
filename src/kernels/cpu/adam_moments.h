// Adam's two moments on their way through fp32, however they are stored: blocks of kMomentBlock
// elements, or of fewer at the end.
#pragma once

#include "kernels/cpu/call.h"
#include "kernels/cpu/vec.h"
#include "kernels/moment_code.h"

namespace ebb::cpu {

class AdamMoments {
 public:
  static int updates(const AdamW& op) { return op.moments == Moments::coded ? 4 : 2; }

  // They begin with this one of the call's updates: both, and behind coded ones the scales of both.
  AdamMoments(const AdamW& op, const Call& call, int at)
      : coded_(op.moments == Moments::coded), call_(call), at_(at) {}

  bool coded() const { return coded_; }

  // Where the block lies, or its values in `memory`.
  float* first(float* memory, int64_t first, int64_t n) const {
    if (!coded_) return call_.update(at_) + first;
    decode_first(memory, block(0, first), n);
    return memory;
  }
  float* second(float* memory, int64_t first, int64_t n) const {
    if (!coded_) return call_.update(at_ + 1) + first;
    decode_second(memory, block(1, first), n);
    return memory;
  }

  // Back again where they are coded: up or down by lots, the lower half of each word for the first
  // moment. v holds the roots afterwards.
  void put_at_random(const float* m, float* v, int64_t first, int64_t n,
                     const uint32_t* words) const {
    const auto share = [](uint32_t half) { return static_cast<float>(half) * 0x1p-16f; };
    take_roots(v, n);
    encode_first(block(0, first), m, n, [&](int64_t i) { return share(words[i] & 0xffff); });
    encode_second(block(1, first), v, n, [&](int64_t i) { return share(words[i] >> 16); });
  }

  // Other values, to the nearest code.
  void set_first(const float* m, int64_t first, int64_t n) const {
    if (!coded_) return std::copy_n(m, n, call_.update(at_) + first), void();
    encode_first(block(0, first), m, n, [](int64_t) { return 0.5f; });
  }
  void set_second(float* v, int64_t first, int64_t n) const {
    if (!coded_) return std::copy_n(v, n, call_.update(at_ + 1) + first), void();
    take_roots(v, n);
    encode_second(block(1, first), v, n, [](int64_t) { return 0.5f; });
  }

 private:
  static void take_roots(float* v, int64_t n) {
    for_lanes(0, n, [&](int64_t i, auto get, auto put) { put(v + i, sqrt(get(v + i))); });
  }
  CodedBlock block(int moment, int64_t first) const {
    return {call_.update<uint8_t>(at_ + moment) + first,
            call_.update(at_ + moment + 2) + first / kMomentBlock};
  }

  const bool coded_;
  const Call& call_;
  const int at_;
};

}  // namespace ebb::cpu
