// Gradients as their signs and one magnitude.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/exchange_gate.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/norm_chunks.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace ebb::cpu {

namespace {

// Those of a vector.
using Signs = std::conditional_t<kLanes == 16, uint16_t, uint8_t>;
static_assert(8 * sizeof(Signs) == kLanes && kNormChunk % kLanes == 0);

// Signs of up to a vector of elements, of which the first is i and n is behind the last.
void put_signs(uint8_t* bits, int64_t i, int64_t n, Signs signs) {
  if (n - i >= kLanes) {
    std::memcpy(bits + i / 8, &signs, sizeof signs);
  } else {
    signs &= static_cast<Signs>((1u << (n - i)) - 1);
    std::memcpy(bits + i / 8, &signs, sign_bytes(n - i));
  }
}

Signs get_signs(const uint8_t* bits, int64_t i, int64_t n) {
  Signs signs = 0;
  if (n - i >= kLanes) {
    std::memcpy(&signs, bits + i / 8, sizeof signs);
  } else {
    std::memcpy(&signs, bits + i / 8, sign_bytes(n - i));
  }
  return signs;
}

// x where the sign is 1, else -x.
Vec signed_by(Signs signs, Vec x) {
  VecU lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<uint32_t>(i);
  const VecU minus = (~(VecU{} + uint32_t{signs}) >> lane & 1) << 31;
  return as_bits<Vec>(as_bits<VecU>(x) ^ minus);
}

double sum_of_magnitudes(const float* x, int64_t n) {
  constexpr int kSums = 32;  // side by side: each waits for its own last addition
  double lanes[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) lanes[lane] += std::fabs(x[i + lane]);
  }
  for (; i < n; ++i) lanes[0] += std::fabs(x[i]);
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

// body(chunk, its first element, the one after its last) for all of n elements.
template <typename Body>
void each_chunk(int64_t n, Body body) {
  parallel_range(norm_chunks(n), 1, kNormChunk, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      body(chunk, chunk * kNormChunk, std::min(n, (chunk + 1) * kNormChunk));
    }
  });
}

// Of y(i, get), which is what is to be sent and becomes the residual.
template <typename Sent>
void encode(int64_t n, const Call& call, bool is_open, Sent sent) {
  auto* bits = call.write<uint8_t>(0);
  float* y = call.update(0);
  if (!is_open) {
    std::fill_n(bits, sign_bytes(n), uint8_t{0});
    call.write(1)[0] = kNotANumber;
    return;
  }
  auto* partial = reinterpret_cast<double*>(call.scratch.data());
  each_chunk(n, [&](int64_t chunk, int64_t begin, int64_t end) {
    for_lanes(begin, end, [&](int64_t i, auto get, auto put) { put(y + i, sent(i, get)); });
    partial[chunk] = sum_of_magnitudes(y + begin, end - begin);
  });
  double total = 0;
  for (int64_t chunk = 0; chunk < norm_chunks(n); ++chunk) total += partial[chunk];
  const auto scale = static_cast<float>(total / static_cast<double>(n));
  call.write(1)[0] = scale;
  each_chunk(n, [&](int64_t, int64_t begin, int64_t end) {
    for_lanes(begin, end, [&](int64_t i, auto get, auto put) {
      const auto signs = static_cast<Signs>(lane_bits(get(y + i) >= splat(0.0f)));
      put_signs(bits, i, end, signs);
      put(y + i, get(y + i) - signed_by(signs, splat(scale)));
    });
  });
}

}  // namespace

int64_t scratch(const SignEncode& op) { return norm_chunks(op.n) * 8; }
int64_t scratch(const SignMomentum& op) { return norm_chunks(op.n) * 8; }

void run(const SignEncode& op, const Call& call) {
  const float *x = call.read(0), *residual = call.update(0);
  const Gate gate(call.read(1));
  const Vec factor = splat(gate.factor);
  encode(op.n, call, gate.is_open,
         [=](int64_t i, auto get) { return multiply_add(get(x + i), factor, get(residual + i)); });
}

void run(const SignMomentum& op, const Call& call) {
  const float *g = call.read(0), *m = call.read(2), *residual = call.update(0);
  const Gate gate(call.read(1));
  const Vec factor = splat(gate.factor * static_cast<float>(1 - op.beta1));
  const Vec keep = splat(static_cast<float>(op.beta1 / static_cast<double>(op.groups)));
  encode(op.n, call, gate.is_open, [=](int64_t i, auto get) {
    return multiply_add(get(g + i), factor, multiply_add(get(m + i), keep, get(residual + i)));
  });
}

void run(const SignKeep& op, const Call& call) {
  if (!std::isfinite(call.read(2)[0])) return;
  const auto* bits = call.read<uint8_t>(0);
  const Vec scale = splat(call.read(1)[0]);
  float* m = call.update(0);
  each_chunk(op.n, [&](int64_t, int64_t begin, int64_t end) {
    for_lanes(begin, end, [&](int64_t i, auto, auto put) {
      put(m + i, signed_by(get_signs(bits, i, end), scale));
    });
  });
}

void run(const SignAdd& op, const Call& call) {
  const auto* bits = call.read<uint8_t>(0);
  const Vec scale = splat(call.read(1)[0] * call.scalars->loss_scale);
  float* sum = call.update(0);
  each_chunk(op.n, [&](int64_t, int64_t begin, int64_t end) {
    for_lanes(begin, end, [&](int64_t i, auto get, auto put) {
      put(sum + i, get(sum + i) + signed_by(get_signs(bits, i, end), scale));
    });
  });
}

}  // namespace ebb::cpu
