// AdamW of elements in fp32, for every op that has some.
#pragma once

#include <cmath>

#include "kernels/cpu/vec.h"
#include "program/op.h"

namespace ebb::cpu {

// Elements where they lie, or widened.
struct AdamBlock {
  const float* g;
  float *w, *m, *v;
  float* ema;  // or null
  int64_t n;
};

struct AdamRates {
  Vec factor, beta2, share1, share2, eps, keep, rate, correct2, ema_share;
  bool frozen;
  // `clip`: what gradients are multiplied by.
  AdamRates(const AdamW& op, float clip, const Scalars& scalars)
      : factor(splat(op.frozen ? 1.0f / scalars.loss_scale : clip)),
        beta2(splat(static_cast<float>(op.beta2))),
        share1(splat(static_cast<float>(1 - op.beta1))),
        share2(splat(static_cast<float>(1 - op.beta2))),
        eps(splat(static_cast<float>(op.eps))),
        keep(splat(static_cast<float>(1 - scalars.lr * op.decay))),
        rate(splat(scalars.lr / scalars.bias1)),
        correct2(splat(1.0f / std::sqrt(op.frozen ? scalars.frozen_bias2 : scalars.bias2))),
        ema_share(splat(static_cast<float>(1 - scalars.ema_decay))),
        frozen(op.frozen) {}
};

// Moves the moments of one vector. By how much the weight goes down.
template <typename Get, typename Put>
Vec adam_step(const AdamBlock& b, const AdamRates& r, int64_t i, Get get, Put put) {
  const Vec grad = get(b.g + i) * r.factor;
  const Vec first = multiply_add(r.share1, grad - get(b.m + i), get(b.m + i));
  const Vec second = multiply_add(r.beta2, get(b.v + i), r.share2 * grad * grad);
  put(b.m + i, first);
  put(b.v + i, second);
  return r.rate * first / multiply_add(sqrt(second), r.correct2, r.eps);
}

// The same where the first moment is given and the second stays.
template <typename Get, typename Put>
Vec frozen_step(const AdamBlock& b, const AdamRates& r, int64_t i, Get get, Put put) {
  const Vec first = get(b.g + i) * r.factor;
  put(b.m + i, first);
  return r.rate * first / multiply_add(sqrt(get(b.v + i)), r.correct2, r.eps);
}

template <bool kAveraged, bool kFrozen>
void adam_pass(const AdamBlock& b, const AdamRates& r) {
  for_lanes(0, b.n, [&](int64_t i, auto get, auto put) {
    const Vec step = kFrozen ? frozen_step(b, r, i, get, put) : adam_step(b, r, i, get, put);
    const Vec next = multiply_less(get(b.w + i), r.keep, step);
    put(b.w + i, next);
    if constexpr (kAveraged) {
      put(b.ema + i, multiply_add(r.ema_share, next - get(b.ema + i), get(b.ema + i)));
    }
  });
}

// One pass over w, m, v and, where there is one, the average.
inline void adam(const AdamBlock& b, const AdamRates& r) {
  if (r.frozen)
    return b.ema != nullptr ? adam_pass<true, true>(b, r) : adam_pass<false, true>(b, r);
  b.ema != nullptr ? adam_pass<true, false>(b, r) : adam_pass<false, false>(b, r);
}

}  // namespace ebb::cpu
