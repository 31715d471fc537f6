// Twins of the elementwise ops.
#pragma once

#include <algorithm>

#include "kernels/reference/refs.h"

namespace ebb {

template <typename T>
void reference(const Silu& op, const Refs<T>& r) {
  const T* x = r.reads[0];
  T* y = r.writes[0];
  for (int64_t i = 0; i < op.n; ++i) y[i] = x[i] * sigmoid(x[i]);
}

template <typename T>
void reference(const SiluBackward& op, const Refs<T>& r) {
  const T *dy = r.reads[0], *x = r.reads[1];
  T* dx = r.writes[0];
  for (int64_t i = 0; i < op.n; ++i) {
    const T s = sigmoid(x[i]);
    dx[i] = dy[i] * (s + x[i] * s * (1.0 - s));
  }
}

inline constexpr double kGeluScale = 0.79788456080286535588;  // sqrt(2 / pi)
inline constexpr double kGeluCubic = 0.044715;

template <typename T>
T gelu(const T& x) {
  using std::tanh;
  return 0.5 * x * (1.0 + tanh(T(kGeluScale * (x + kGeluCubic * x * x * x))));
}

template <typename T>
T gelu_slope(const T& x) {
  using std::tanh;
  const T th = tanh(T(kGeluScale * (x + kGeluCubic * x * x * x)));
  const T du = kGeluScale * (1.0 + 3.0 * kGeluCubic * x * x);
  return 0.5 * (1.0 + th) + 0.5 * x * (1.0 - th * th) * du;
}

template <typename T>
void reference(const Gelu& op, const Refs<T>& r) {
  for (int64_t i = 0; i < op.n; ++i) r.writes[0][i] = gelu(r.reads[0][i]);
}

template <typename T>
void reference(const Add& op, const Refs<T>& r) {
  for (int64_t i = 0; i < op.n; ++i) r.writes[0][i] = r.reads[0][i] + r.reads[1][i];
}

template <typename T>
void reference(const AddTo& op, const Refs<T>& r) {
  for (int64_t i = 0; i < op.n; ++i) r.updates[0][i] += r.reads[0][i];
}

template <typename T>
void reference(const Repeat& op, const Refs<T>& r) {
  std::copy_n(r.reads[0], op.n, r.writes[0]);
  std::copy_n(r.reads[0], op.n, r.writes[0] + op.n);
}

template <typename T>
void reference(const CopyColumns& op, const Refs<T>& r) {
  for (int64_t i = 0; i < op.R; ++i) {
    std::copy_n(r.reads[0] + i * op.K + op.from, op.n, r.writes[0] + i * op.N + op.to);
  }
}

template <typename T>
void reference(const Zero& op, const Refs<T>& r) {
  std::fill_n(r.writes[0], op.n, T(0));
}

// Both in memory: there is nothing to wait for.
template <typename T>
void reference(const Transfer& op, const Refs<T>& r) {
  if (op.begins()) std::copy_n(r.reads[0], op.n, r.writes[0]);
}

// There is nobody else.
template <typename T>
void reference(const Exchange&, const Refs<T>&) {}

}  // namespace ebb
