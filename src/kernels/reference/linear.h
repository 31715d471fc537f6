// Twins of the linear ops.
#pragma once

#include "kernels/reference/elementwise.h"
#include "kernels/reference/refs.h"

namespace ebb {

// Whether element (j, k) of a matrix of K columns is there.
template <typename T>
bool is_left(const T* mask, int64_t K, int64_t j, int64_t k) {
  return (whole(mask[j * mask_row_bytes(K) + 8 + k / 8]) >> (k % 8) & 1) != 0;
}

// A weight (N, K) with all its elements: those that are not there are 0.
template <typename T, typename AnyLinear>
std::vector<T> dense(const AnyLinear& op, const Refs<T>& r) {
  std::vector<T> w(static_cast<size_t>(op.N * op.K), T(0));
  const T* next = r.reads[1];
  for (int64_t i = 0; i < op.N * op.K; ++i) {
    if (op.left == 0 || is_left(r.reads.back(), op.K, i / op.K, i % op.K)) w[i] = *next++;
  }
  return w;
}

template <typename T>
void reference(const Linear& op, const Refs<T>& r) {
  const T *x = r.reads[0], *b = r.reads[2];
  const std::vector<T> w = dense(op, r);
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
  const T* dy = r.reads[0];
  const std::vector<T> w = dense(op, r);
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
      if (op.left > 0 && !is_left(r.reads[2], op.K, j, k)) continue;
      T sum = 0;
      for (int64_t i = 0; i < op.R; ++i) sum += dy[i * op.N + j] * x[i * op.K + k];
      *dw = op.begins ? sum : *dw + sum;
      ++dw;
    }
  }
}

}  // namespace ebb
