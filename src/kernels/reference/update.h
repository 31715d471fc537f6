// Twins of the optimizer's ops. The moments' factors are the doubles of the op's fp32 constants.
#pragma once

#include "kernels/reference/refs.h"

namespace ebb {

template <typename T>
void reference(const SquaredNorm& op, const Refs<T>& r) {
  T sum = 0;
  for (int64_t i = 0; i < op.n; ++i) sum += square(r.reads[0][i]);
  r.writes[0][op.slot] = sum;
}

// The factor is that of torch.nn.utils.clip_grad_norm_: min(1, limit / (norm + 1e-6)).
template <typename T>
void reference(const ClipScale& op, const Refs<T>& r) {
  using std::sqrt;
  T sum = 0;
  for (int64_t i = 0; i < op.count; ++i) sum += r.reads[0][op.first + i];
  const T norm = sqrt(sum);
  const T factor = static_cast<double>(op.limit) / (norm + 1e-6);
  r.writes[0][0] = norm;
  r.writes[0][1] = op.limit > 0 && real_part(factor) < 1 ? factor : T(1);
}

template <typename T>
void reference(const AdamW& op, const Refs<T>& r) {
  using std::sqrt;
  const T norm = r.reads[1][0], factor = r.reads[1][1];
  if (!std::isfinite(real_part(norm))) return;
  T *w = r.updates[0], *m = r.updates[1], *v = r.updates[2];
  const double beta1 = op.beta1, beta2 = op.beta2, eps = op.eps, lr = r.scalars->lr;
  const double bias1 = r.scalars->bias1, bias2 = r.scalars->bias2;
  const double ema_decay = r.scalars->ema_decay, shrink = 1 - lr * static_cast<double>(op.decay);
  for (int64_t i = 0; i < op.n; ++i) {
    const T g = r.reads[0][i] * factor;
    w[i] *= shrink;
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    w[i] -= lr * (m[i] / bias1) / (sqrt(T(v[i] / bias2)) + eps);
    if (op.ema) r.updates[3][i] = ema_decay * r.updates[3][i] + (1 - ema_decay) * w[i];
  }
}

}  // namespace ebb
