// Twins of the sampling ops.
#pragma once

#include <algorithm>

#include "kernels/reference/refs.h"

namespace ebb {

template <typename T>
void reference(const LabelsAndNull& op, const Refs<T>& r) {
  std::copy_n(r.reads[0], op.B, r.writes[0]);
  std::fill_n(r.writes[0] + op.B, op.B, T(static_cast<double>(op.null_label)));
}

template <typename T>
void reference(const Guide& op, const Refs<T>& r) {
  const double scale = r.scalars->guidance;
  for (int64_t b = 0; b < op.B; ++b) {
    for (int64_t c = 0; c < op.channels; ++c) {
      for (int64_t i = 0; i < op.n; ++i) {
        const T with = r.reads[0][(b * op.channels + c) * op.n + i];
        const T without = r.reads[0][((op.B + b) * op.channels + c) * op.n + i];
        r.writes[0][(b * op.channels + c) * op.n + i] =
            c < op.guided ? without + scale * (with - without) : with;
      }
    }
  }
}

template <typename T>
void reference(const DiffusionStep& op, const Refs<T>& r) {
  using std::exp;
  const std::array<double, 8> coef = [&] {
    std::array<double, 8> wide{};
    for (size_t i = 0; i < wide.size(); ++i) wide[i] = r.scalars->coef[i];
    return wide;
  }();
  const int64_t count = op.C * op.n, out_count = op.learn_sigma ? 2 * count : count;
  for (int64_t b = 0; b < op.B; ++b) {
    const T *x = r.reads[0] + b * count, *out = r.reads[1] + b * out_count;
    T* next = r.writes[0] + b * count;
    for (int64_t i = 0; i < count; ++i) {
      T eps = out[i];
      T x0 = coef[0] * x[i] - coef[1] * eps;
      if (op.clip && std::abs(real_part(x0)) > 1) {
        x0 = T(real_part(x0) > 0 ? 1.0 : -1.0);
        eps = (coef[0] * x[i] - x0) / coef[1];
      }
      next[i] = coef[2] * x0 + coef[3] * x[i] + coef[4] * eps;
      if (op.noisy) {
        T lv = T(coef[5]);
        if (op.learn_sigma) {
          const T f = 0.5 * (out[count + i] + 1.0);
          lv = f * coef[6] + (1.0 - f) * coef[5];
        }
        next[i] += exp(T(0.5 * lv)) * r.reads[2][b * count + i];
      }
    }
  }
}

template <typename T>
void reference(const FlowStep& op, const Refs<T>& r) {
  const int64_t count = op.C * op.n, out_count = op.learn_sigma ? 2 * count : count;
  const double a = r.scalars->coef[op.first];
  for (int64_t b = 0; b < op.B; ++b) {
    for (int64_t i = 0; i < count; ++i) {
      T next = r.reads[0][b * count + i] + a * r.reads[1][b * out_count + i];
      if (op.second) {
        next += static_cast<double>(r.scalars->coef[op.first + 1]) * r.reads[2][b * out_count + i];
      }
      r.writes[0][b * count + i] = next;
    }
  }
}

}  // namespace ebb
