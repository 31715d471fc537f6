// Gradients in fewer bits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/each_lane.h"
#include "kernels/cpu/exchange_gate.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/random_bits.h"

namespace ebb::cpu {

void run(const GateCodes& op, const Call& call) {
  const float *clip = call.read(0), *norms = call.read(1);
  float* gate = call.write(0);
  const bool all = std::all_of(norms, norms + op.others, [](float x) { return std::isfinite(x); });
  gate[0] = all && std::isfinite(clip[0]) ? clip[0] : kNotANumber;
  gate[1] = clip[1];
}

// ---- bf16 ---------------------------------------------------------------------------------------

void run(const EncodeBf16& op, const Call& call) {
  const float* g = call.read(0);
  auto* code = call.write<Bf16>(0);
  each_lane(op.n, [=](int64_t i, auto get, auto put) { put(code + i, get(g + i)); });
}

void run(const EncodeBf16Feedback& op, const Call& call) {
  const float* g = call.read(0);
  const Gate gate(call.read(1));
  auto* code = call.write<Bf16>(0);
  auto* residual = call.update<Bf16>(0);
  if (!gate.is_open) {
    return each_lane(op.n, [=](int64_t i, auto, auto put) { put(code + i, splat(kNotANumber)); });
  }
  const Vec factor = splat(gate.factor);
  each_lane(op.n, [=](int64_t i, auto get, auto put) {
    const Vec x = multiply_add(get(g + i), factor, get(residual + i));
    put(code + i, x);
    put(residual + i, x - as_stored<Bf16>(x));
  });
}

void run(const AddBf16& op, const Call& call) {
  const auto* code = call.read<Bf16>(0);
  float* sum = call.update(0);
  const Vec scale = splat(op.unscaled ? call.scalars->loss_scale : 1.0f);
  each_lane(op.n, [=](int64_t i, auto get, auto put) {
    put(sum + i, multiply_add(get(code + i), scale, get(sum + i)));
  });
}

// ---- int8 ---------------------------------------------------------------------------------------

namespace {

constexpr int kMiddle = 128;      // the code of 0
constexpr float kSteps = 127.0f;  // of the scale, either way

// The largest magnitude of up to a block; if one is not finite, no finite number.
float largest(const float* x, int64_t n) {
  VecI most{};  // magnitudes of fp32 are in the order of their bits
  for_lanes(0, n, [&](int64_t i, auto get, auto) {
    const VecI size = as_bits<VecI>(get(x + i)) & 0x7fffffff;
    most = size > most ? size : most;
  });
  int32_t of_all = 0;
  for (int lane = 0; lane < kLanes; ++lane) of_all = std::max(of_all, most[lane]);
  return std::bit_cast<float>(of_all);
}

// The whole number below or above x, as often as makes the mean right; share: from 0 to below 1.
Vec rounded_at_random(Vec x, Vec share) {
  const Vec near = nearest(x);
  const Vec below = near > x ? near - splat(1.0f) : near;
  const Vec either = share < x - below ? below + splat(1.0f) : below;
  return max(splat(-kSteps), min(splat(kSteps), either));
}

// Up to a block of whole numbers as codes, and back.
void put_codes(uint8_t* code, const float* whole, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    code[i] = static_cast<uint8_t>(static_cast<int32_t>(whole[i]) + kMiddle);
  }
}
void get_codes(float* whole, const uint8_t* code, int64_t n) {
  for (int64_t i = 0; i < n; ++i) whole[i] = static_cast<float>(code[i] - kMiddle);
}

// One block's codes; the result is its scale.
float encode_block(uint8_t* code, const float* g, int64_t n, const uint32_t* words) {
  const float most = largest(g, n), scale = most / kSteps;
  if (!std::isfinite(most) || scale < std::numeric_limits<float>::min()) {
    std::fill_n(code, n, static_cast<uint8_t>(kMiddle));
    return std::isfinite(most) ? 0.0f : kNotANumber;
  }
  alignas(64) float whole[kCodeBlock];
  const Vec by = splat(scale), unit = splat(0x1p-24f);
  for_lanes(0, n, [&](int64_t i, auto get, auto put) {
    VecI word;  // of a whole block there are as many as lanes need
    std::memcpy(&word, words + i, sizeof word);
    const Vec share = __builtin_convertvector(as_bits<VecI>(as_bits<VecU>(word) >> 8), Vec) * unit;
    put(whole + i, rounded_at_random(get(g + i) / by, share));
  });
  put_codes(code, whole, n);
  return scale;
}

// body(block, its first element, how many it has) for all of n elements.
template <typename Body>
void each_block(int64_t n, Body body) {
  parallel_range(code_blocks(n), 16, kCodeBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kCodeBlock;
      body(block, first, std::min(kCodeBlock, n - first));
    }
  });
}

}  // namespace

void run(const EncodeInt8& op, const Call& call) {
  const float* g = call.read(0);
  auto* code = call.write<uint8_t>(0);
  float* scales = call.write(1);
  each_block(op.n, [&](int64_t block, int64_t first, int64_t n) {
    static_assert(kRandomWords == kCodeBlock);
    uint32_t words[kRandomWords];
    random_words(words, call.scalars->seed, Stream::exchange_rounding,
                 static_cast<uint32_t>(call.scalars->step), op.tensor,
                 static_cast<uint32_t>(block));
    scales[block] = encode_block(code + first, g + first, n, words);
  });
}

void run(const AddInt8& op, const Call& call) {
  const auto* code = call.read<uint8_t>(0);
  const float* scales = call.read(1);
  float* sum = call.update(0);
  each_block(op.n, [&](int64_t block, int64_t first, int64_t n) {
    alignas(64) float whole[kCodeBlock];
    get_codes(whole, code + first, n);
    const Vec scale = splat(scales[block]);
    float* to = sum + first;
    for_lanes(0, n, [&](int64_t i, auto get, auto put) {
      put(to + i, multiply_add(get(whole + i), scale, get(to + i)));
    });
  });
}

}  // namespace ebb::cpu
