// Twins of the normalisations: AdaLN and the norm of q and k.
#pragma once

#include <algorithm>

#include "kernels/reference/refs.h"

namespace ebb {

template <typename T>
struct RowStats {
  T mean, rstd;
};

// Mean and 1/std of n numbers; without `centred` the mean is taken as 0 (rms).
template <typename T>
RowStats<T> row_stats(const T* x, int64_t n, bool centred) {
  using std::sqrt;
  T mean = 0, variance = 0;
  if (centred) {
    for (int64_t i = 0; i < n; ++i) mean += x[i] / static_cast<double>(n);
  }
  for (int64_t i = 0; i < n; ++i) variance += square(T(x[i] - mean)) / static_cast<double>(n);
  return {mean, T(1.0 / sqrt(T(variance + kNormEps)))};
}

// The gradient of x through norm(x), given that of norm(x). Added to what is in dx.
template <typename T>
void add_row_gradient(T* dx, const T* dnorm, const T* x, const RowStats<T>& s, int64_t n,
                      bool centred) {
  T sum = 0, dot = 0;  // of dnorm, and of dnorm with norm(x)
  for (int64_t i = 0; i < n; ++i) {
    if (centred) sum += dnorm[i];
    dot += dnorm[i] * (x[i] - s.mean) * s.rstd;
  }
  const auto count = static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    dx[i] += s.rstd * (dnorm[i] - sum / count - (x[i] - s.mean) * s.rstd * dot / count);
  }
}

template <typename T>
void reference(const AdaLN& op, const Refs<T>& r) {
  T *y = r.writes[0], *stats = r.writes[1];
  for (int64_t row = 0; row < op.B * op.T; ++row) {
    const T* x = r.reads[0] + row * op.D;
    const T* mod = r.reads[1] + row / op.T * op.chunks * op.D;
    const T *shift = mod + op.shift * op.D, *scale = mod + op.scale * op.D;
    const RowStats<T> s = row_stats(x, op.D, true);
    stats[row * 2] = s.mean;
    stats[row * 2 + 1] = s.rstd;
    for (int64_t i = 0; i < op.D; ++i) {
      y[row * op.D + i] = (x[i] - s.mean) * s.rstd * (1.0 + scale[i]) + shift[i];
    }
  }
}

template <typename T>
void reference(const AdaLNBackward& op, const Refs<T>& r) {
  std::vector<T> dnorm(op.D);
  for (int64_t b = 0; b < op.B; ++b) {
    const T* scale = r.reads[3] + (b * op.chunks + op.scale) * op.D;
    T* dshift = r.writes[0] + (b * op.chunks + op.shift) * op.D;
    T* dscale = r.writes[0] + (b * op.chunks + op.scale) * op.D;
    std::fill_n(dshift, op.D, T(0));
    std::fill_n(dscale, op.D, T(0));
    for (int64_t row = b * op.T; row < (b + 1) * op.T; ++row) {
      const T *dy = r.reads[0] + row * op.D, *x = r.reads[1] + row * op.D;
      const RowStats<T> s = {r.reads[2][row * 2], r.reads[2][row * 2 + 1]};
      T* dx = (op.residual ? r.updates[0] : r.writes[1]) + row * op.D;
      for (int64_t i = 0; i < op.D; ++i) {
        dshift[i] += dy[i];
        dscale[i] += dy[i] * (x[i] - s.mean) * s.rstd;
        dnorm[i] = dy[i] * (1.0 + scale[i]);
        if (!op.residual) dx[i] = T(0);
      }
      add_row_gradient(dx, dnorm.data(), x, s, op.D, true);
    }
  }
}

template <typename T>
void reference(const QkNorm& op, const Refs<T>& r) {
  const bool layer = op.kind == QkNormKind::layer;
  for (int64_t row = 0; row < op.B * op.T; ++row) {
    for (int64_t head = 0; head < 3 * op.H; ++head) {  // q heads, k heads, v heads
      const T* x = r.reads[0] + (row * 3 * op.H + head) * op.d;
      T* y = r.writes[0] + (row * 3 * op.H + head) * op.d;
      if (head >= 2 * op.H) {
        std::copy_n(x, op.d, y);
        continue;
      }
      const bool is_k = head >= op.H;
      const T* w = r.reads[is_k ? 2 : 1];
      const RowStats<T> s = row_stats(x, op.d, layer);
      T* stats = r.writes[1] + (row * 2 * op.H + head) * 2;
      stats[0] = s.mean;
      stats[1] = s.rstd;
      for (int64_t i = 0; i < op.d; ++i) {
        y[i] = (x[i] - s.mean) * s.rstd * w[i] + (layer ? r.reads[is_k ? 4 : 3][i] : T(0));
      }
    }
  }
}

template <typename T>
void reference(const QkNormBackward& op, const Refs<T>& r) {
  const bool layer = op.kind == QkNormKind::layer;
  std::vector<T> dnorm(op.d);
  for (int64_t row = 0; row < op.B * op.T; ++row) {
    for (int64_t head = 0; head < 3 * op.H; ++head) {
      const int64_t at = (row * 3 * op.H + head) * op.d;
      const T *dy = r.reads[0] + at, *x = r.reads[1] + at;
      T* dx = r.writes[0] + at;
      if (head >= 2 * op.H) {
        std::copy_n(dy, op.d, dx);
        continue;
      }
      const bool is_k = head >= op.H;
      const T* stats = r.reads[2] + (row * 2 * op.H + head) * 2;
      const RowStats<T> s = {stats[0], stats[1]};
      const T* w = r.reads[is_k ? 4 : 3];
      T* dw = r.updates[is_k ? 1 : 0];
      for (int64_t i = 0; i < op.d; ++i) {
        dw[i] += dy[i] * (x[i] - s.mean) * s.rstd;
        if (layer) r.updates[is_k ? 3 : 2][i] += dy[i];
        dnorm[i] = dy[i] * w[i];
        dx[i] = T(0);
      }
      add_row_gradient(dx, dnorm.data(), x, s, op.d, layer);
    }
  }
}

}  // namespace ebb
