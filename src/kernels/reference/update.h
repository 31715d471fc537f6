// Twins of the optimizer's ops.
#pragma once

#include <algorithm>
#include <vector>

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
  const double scale = r.scalars->loss_scale;
  const T unscaled = norm / scale;
  const T factor = static_cast<double>(op.limit) / (unscaled + 1e-6);
  r.writes[0][0] = unscaled;
  r.writes[0][1] = (op.limit > 0 && real_part(factor) < 1 ? factor : T(1)) / scale;
}

// However they are stored, the twin's weights, moments and average are numbers: what is there
// beside them, lower halves and scales, it leaves alone.
template <typename T>
void reference(const AdamW& op, const Refs<T>& r) {
  using std::sqrt;
  const T norm = r.reads[1][0], factor = r.reads[1][1];
  if (!std::isfinite(real_part(norm))) return;
  const int moments = op.split ? 2 : 1;
  const int ema = moments + (op.moments == Moments::coded ? 4 : 2);
  T *w = r.updates[0], *m = r.updates[moments], *v = r.updates[moments + 1];
  const double beta1 = op.beta1, beta2 = op.beta2, eps = op.eps, lr = r.scalars->lr;
  const double bias1 = r.scalars->bias1;
  const double bias2 = op.frozen ? r.scalars->frozen_bias2 : r.scalars->bias2;
  const double ema_decay = r.scalars->ema_decay, shrink = 1 - lr * static_cast<double>(op.decay);
  for (int64_t i = 0; i < op.n; ++i) {
    const T g = r.reads[0][i] * factor;
    w[i] *= shrink;
    m[i] = op.frozen ? T(r.reads[0][i] / static_cast<double>(r.scalars->loss_scale))
                     : T(beta1 * m[i] + (1 - beta1) * g);
    if (!op.frozen) v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    w[i] -= lr * (m[i] / bias1) / (sqrt(T(v[i] / bias2)) + eps);
    if (op.ema) r.updates[ema][i] = ema_decay * r.updates[ema][i] + (1 - ema_decay) * w[i];
  }
}

template <typename T>
T nearer_zero(const T& x, double by) {
  return real_part(x) > by ? T(x - by) : real_part(x) < -by ? T(x + by) : T(0);
}

template <typename T>
void reference(const StructureSquares& op, const Refs<T>& r) {
  T* squares = op.begins ? r.writes[0] : r.updates[0];
  if (op.begins) std::fill_n(squares, op.structures, T(0));
  for (int64_t i = 0; i < op.n(); ++i) {
    const int64_t index = op.by_columns ? i % op.columns : i / op.columns;
    const T x = nearer_zero(r.reads[0][i], r.scalars->lr * op.l1);
    squares[index / op.width % op.structures] += square(x);
  }
}

template <typename T>
void reference(const Shrink& op, const Refs<T>& r) {
  using std::sqrt;
  if (!std::isfinite(real_part(r.reads[0][0]))) return;
  const double lr = r.scalars->lr, ema_decay = r.scalars->ema_decay;
  T* ema = op.ema ? r.updates[op.split ? 2 : 1] : nullptr;
  for (int64_t i = 0; i < op.n(); ++i) {
    T& w = r.updates[0][i];
    w = nearer_zero(w, lr * op.l1);
    if (op.lasso > 0) {
      const int64_t index = op.by_columns ? i % op.columns : i / op.columns;
      const T norm = sqrt(r.reads[1][index / op.width % op.structures]);
      w *= real_part(norm) > lr * op.lasso ? T(1.0 - lr * op.lasso / norm) : T(0);
    }
    if (op.ema) ema[i] = ema_decay * ema[i] + (1 - ema_decay) * w;
  }
}

// The gradient's sign alone decides: where it is zero, so is the step.
template <typename T>
void reference(const Lion& op, const Refs<T>& r) {
  const T norm = r.reads[1][0], factor = r.reads[1][1];
  if (!std::isfinite(real_part(norm))) return;
  const int own = op.split ? 2 : 1;
  const int ema = own + (op.moments == Moments::coded ? 2 : 1);
  T *w = r.updates[0], *m = r.updates[own];
  const double lr = r.scalars->lr, ema_decay = r.scalars->ema_decay;
  for (int64_t i = 0; i < op.n; ++i) {
    const T g = r.reads[0][i] * factor;
    const double way = real_part(op.beta1 * m[i] + (1 - op.beta1) * g);
    w[i] *= 1 - lr * op.decay;
    if (way != 0) w[i] -= way > 0 ? lr : -lr;
    m[i] = op.beta2 * m[i] + (1 - op.beta2) * g;
    if (op.ema) r.updates[ema][i] = ema_decay * r.updates[ema][i] + (1 - ema_decay) * w[i];
  }
}

template <typename T>
void reference(const Adafactor& op, const Refs<T>& r) {
  using std::sqrt;
  const T norm = r.reads[1][0], factor = r.reads[1][1];
  if (!std::isfinite(real_part(norm))) return;
  const int own = op.split ? 2 : 1;
  const int ema = own + (op.factored() ? 2 : 1);
  const auto g = [&](int64_t i) { return r.reads[0][i] * factor; };
  const auto at_least = [](const T& x, double least) {
    return real_part(x) < least ? T(least) : x;
  };
  const double update = r.scalars->update, lr = r.scalars->lr;
  const double share = std::pow(update, Adafactor::kForget);
  T *w = r.updates[0], *v = r.updates[own];
  std::vector<T> second(op.n());
  if (op.factored()) {
    T* columns = r.updates[own + 1];
    std::vector<T> row_sum(op.rows, T(0)), column_sum(op.columns, T(0));
    for (int64_t i = 0; i < op.n(); ++i) {
      row_sum[i / op.columns] += square(g(i));
      column_sum[i % op.columns] += square(g(i));
    }
    T mean = 0;
    for (int64_t i = 0; i < op.rows; ++i) {
      v[i] += share * (row_sum[i] / static_cast<double>(op.columns) - v[i]);
      mean += v[i] / static_cast<double>(op.rows);
    }
    for (int64_t i = 0; i < op.columns; ++i) {
      columns[i] += share * (column_sum[i] / static_cast<double>(op.rows) - columns[i]);
    }
    mean = at_least(mean, Adafactor::kLeast);
    for (int64_t i = 0; i < op.n(); ++i) {
      second[i] = v[i / op.columns] * columns[i % op.columns] / mean;
    }
  } else {
    for (int64_t i = 0; i < op.n(); ++i) second[i] = v[i] += share * (square(g(i)) - v[i]);
  }
  T step_size = 0, weight_size = 0;
  for (int64_t i = 0; i < op.n(); ++i) {
    second[i] = g(i) / sqrt(at_least(second[i], square(Adafactor::kLeast)));  // now the step
    step_size += square(second[i]) / static_cast<double>(op.n());
    weight_size += square(w[i]) / static_cast<double>(op.n());
  }
  const T rate = at_least(sqrt(weight_size), Adafactor::kLeastSize) *
                 std::min(lr, 1 / std::sqrt(update)) / at_least(sqrt(step_size), 1);
  const double ema_decay = r.scalars->ema_decay;
  for (int64_t i = 0; i < op.n(); ++i) {
    w[i] = w[i] * (1 - lr * op.decay) - rate * second[i];
    if (op.ema) r.updates[ema][i] = ema_decay * r.updates[ema][i] + (1 - ema_decay) * w[i];
  }
}

}  // namespace ebb
