// Twins of the gated residual.
#pragma once

#include <algorithm>

#include "kernels/reference/refs.h"

namespace ebb {

template <typename T>
void reference(const AddGated& op, const Refs<T>& r) {
  const T *x = r.reads[0], *y = r.reads[1];
  for (int64_t row = 0; row < op.B * op.T; ++row) {
    const T* gate = r.reads[2] + (row / op.T * op.chunks + op.gate) * op.D;
    for (int64_t i = 0; i < op.D; ++i) {
      r.writes[0][row * op.D + i] = x[row * op.D + i] + gate[i] * y[row * op.D + i];
    }
  }
}

template <typename T>
void reference(const AddGatedBackward& op, const Refs<T>& r) {
  const T *dout = r.reads[0], *y = r.reads[1];
  T* dy = r.writes[0];
  for (int64_t b = 0; b < op.B; ++b) {
    const T* gate = r.reads[2] + (b * op.chunks + op.gate) * op.D;
    T* dgate = r.writes[1] + (b * op.chunks + op.gate) * op.D;
    std::fill_n(dgate, op.D, T(0));
    for (int64_t row = b * op.T; row < (b + 1) * op.T; ++row) {
      for (int64_t i = 0; i < op.D; ++i) {
        dy[row * op.D + i] = gate[i] * dout[row * op.D + i];
        dgate[i] += dout[row * op.D + i] * y[row * op.D + i];
      }
    }
  }
}

}  // namespace ebb
