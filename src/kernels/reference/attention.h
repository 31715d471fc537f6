// Twins of attention: one head at a time, one query row at a time, every score written down.
#pragma once

#include <algorithm>

#include "kernels/reference/refs.h"

namespace ebb {

// The rows of one head of one sample. Token t of q, k, v or o is at data + t * stride.
template <typename T>
struct HeadView {
  T* data;
  int64_t stride;
  T* operator[](int64_t t) const { return data + t * stride; }
};

template <typename T>
T dot(const T* a, const T* b, int64_t n) {
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// part: 0 q, 1 k, 2 v, of qkv (B*T, 3*H*d).
template <typename T, typename O>
HeadView<T> qkv_head(T* qkv, const O& op, int64_t part, int64_t b, int64_t h) {
  return {qkv + b * op.T * 3 * op.H * op.d + (part * op.H + h) * op.d, 3 * op.H * op.d};
}

// Of o (B*T, H*d).
template <typename T, typename O>
HeadView<T> o_head(T* o, const O& op, int64_t b, int64_t h) {
  return {o + b * op.T * op.H * op.d + h * op.d, op.H * op.d};
}

template <typename T>
void reference(const Attention& op, const Refs<T>& r) {
  using std::exp, std::log;
  const double scale = 1 / std::sqrt(static_cast<double>(op.d));
  std::vector<T> score(op.T);
  for (int64_t b = 0; b < op.B; ++b) {
    for (int64_t h = 0; h < op.H; ++h) {
      const auto q = qkv_head(r.reads[0], op, 0, b, h);
      const auto k = qkv_head(r.reads[0], op, 1, b, h);
      const auto v = qkv_head(r.reads[0], op, 2, b, h);
      const auto o = o_head(r.writes[0], op, b, h);
      T* lse = r.writes[1] + (b * op.H + h) * op.T;
      for (int64_t i = 0; i < op.T; ++i) {
        for (int64_t j = 0; j < op.T; ++j) score[j] = scale * dot(q[i], k[j], op.d);
        double largest = real_part(score[0]);
        for (const T& s : score) largest = std::max(largest, real_part(s));
        T sum = 0;
        for (const T& s : score) sum += exp(T(s - largest));
        lse[i] = largest + log(sum);
        std::fill_n(o[i], op.d, T(0));
        for (int64_t j = 0; j < op.T; ++j) {
          const T p = exp(T(score[j] - lse[i]));
          for (int64_t c = 0; c < op.d; ++c) o[i][c] += p * v[j][c];
        }
      }
    }
  }
}

template <typename T>
void reference(const AttentionBackward& op, const Refs<T>& r) {
  using std::exp;
  const double scale = 1 / std::sqrt(static_cast<double>(op.d));
  std::fill_n(r.writes[0], op.B * op.T * 3 * op.H * op.d, T(0));
  for (int64_t b = 0; b < op.B; ++b) {
    for (int64_t h = 0; h < op.H; ++h) {
      const auto d_o = o_head(r.reads[0], op, b, h);
      const auto q = qkv_head(r.reads[1], op, 0, b, h);
      const auto k = qkv_head(r.reads[1], op, 1, b, h);
      const auto v = qkv_head(r.reads[1], op, 2, b, h);
      const auto o = o_head(r.reads[2], op, b, h);
      const T* lse = r.reads[3] + (b * op.H + h) * op.T;
      const auto dq = qkv_head(r.writes[0], op, 0, b, h);
      const auto dk = qkv_head(r.writes[0], op, 1, b, h);
      const auto dv = qkv_head(r.writes[0], op, 2, b, h);
      for (int64_t i = 0; i < op.T; ++i) {
        const T mean = dot(d_o[i], o[i], op.d);  // of dp under p
        for (int64_t j = 0; j < op.T; ++j) {
          const T p = exp(T(scale * dot(q[i], k[j], op.d) - lse[i]));
          const T ds = scale * p * (dot(d_o[i], v[j], op.d) - mean);
          for (int64_t c = 0; c < op.d; ++c) {
            dq[i][c] += ds * k[j][c];
            dk[j][c] += ds * q[i][c];
            dv[j][c] += p * d_o[i][c];
          }
        }
      }
    }
  }
}

}  // namespace ebb
