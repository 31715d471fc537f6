// Twins of the linear ops.
#pragma once

#include "kernels/reference/elementwise.h"
#include "kernels/reference/refs.h"

namespace ebb {

template <typename T>
void reference(const Linear& op, const Refs<T>& r) {
  const T *x = r.reads[0], *w = r.reads[1], *b = r.reads[2];
  T* y = r.writes[0];
  for (int64_t i = 0; i < op.R; ++i) {
    for (int64_t j = 0; j < op.N; ++j) {
      T sum = b[j];
      for (int64_t k = 0; k < op.K; ++k) sum += x[i * op.K + k] * w[j * op.K + k];
      y[i * op.N + j] = op.end == LinearEnd::gelu ? gelu(sum) : sum;
      if (op.end == LinearEnd::gelu_aside) r.writes[1][i * op.N + j] = gelu(sum);
    }
  }
}

template <typename T>
void reference(const LinearBackwardInput& op, const Refs<T>& r) {
  const T *dy = r.reads[0], *w = r.reads[1];
  T* dx = r.writes[0];
  for (int64_t i = 0; i < op.R; ++i) {
    for (int64_t k = 0; k < op.K; ++k) {
      T sum = 0;
      for (int64_t j = 0; j < op.N; ++j) sum += dy[i * op.N + j] * w[j * op.K + k];
      if (op.gelu) sum *= gelu_slope(r.reads[2][i * op.K + k]);
      dx[i * op.K + k] = sum;
    }
  }
}

template <typename T>
void reference(const LinearBackwardParams& op, const Refs<T>& r) {
  const T *dy = r.reads[0], *x = r.reads[1];
  T* dw = op.begins ? r.writes[0] : r.updates[0];
  T* db = op.begins ? r.writes[1] : r.updates[1];
  for (int64_t j = 0; j < op.N; ++j) {
    T total = 0;
    for (int64_t i = 0; i < op.R; ++i) total += dy[i * op.N + j];
    db[j] = op.begins ? total : db[j] + total;
    for (int64_t k = 0; k < op.K; ++k) {
      T sum = 0;
      for (int64_t i = 0; i < op.R; ++i) sum += dy[i * op.N + j] * x[i * op.K + k];
      dw[j * op.K + k] = op.begins ? sum : dw[j * op.K + k] + sum;
    }
  }
}

}  // namespace ebb
