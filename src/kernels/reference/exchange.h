// Twins of the ops that code gradients for other ranks. What is decided by a comparison, or rounded
// to fewer bits, is so from the numbers that fp32 has.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "kernels/reference/refs.h"

namespace ebb {

inline constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

template <typename T>
float narrow(const T& x) {
  return static_cast<float>(real_part(x));
}

// g gate[1] + what was left of the step before, in fp32.
template <typename T>
float coded(const T& g, const T* gate, const T& residual) {
  return std::fma(narrow(g), narrow(gate[1]), narrow(residual));
}

template <typename T>
bool is_open(const T* gate) {
  return std::isfinite(narrow(gate[0]));
}

// Word `i` of a tensor's random numbers, as cpu/random_bits.h orders them.
inline uint32_t exchange_word(const Scalars& s, Stream stream, uint32_t tensor, int64_t i) {
  constexpr int64_t kWords = 256, kCounters = kWords / 4;
  const auto counter = static_cast<uint32_t>(i / kWords * kCounters + i % kCounters);
  return philox(s.seed, static_cast<uint32_t>(stream), static_cast<uint32_t>(s.step), tensor,
                counter)[i % kWords / kCounters];
}

template <typename T>
void reference(const GateCodes& op, const Refs<T>& r) {
  const T *clip = r.reads[0], *norms = r.reads[1];
  const bool all = std::all_of(norms, norms + op.others, [](const T& x) { return is_open(&x); });
  r.writes[0][0] = all && is_open(clip) ? clip[0] : T(kNoNumber);
  r.writes[0][1] = clip[1];
}

template <typename T>
void reference(const EncodeBf16& op, const Refs<T>& r) {
  for (int64_t i = 0; i < op.n; ++i) {
    r.writes[0][i] = static_cast<double>(Bf16::nearest(narrow(r.reads[0][i])));
  }
}

template <typename T>
void reference(const EncodeBf16Feedback& op, const Refs<T>& r) {
  for (int64_t i = 0; i < op.n; ++i) {
    if (!is_open(r.reads[1])) {
      r.writes[0][i] = kNoNumber;
      continue;
    }
    const float x = coded(r.reads[0][i], r.reads[1], r.updates[0][i]);
    const auto code = static_cast<float>(Bf16::nearest(x));
    r.writes[0][i] = static_cast<double>(code);
    r.updates[0][i] = static_cast<double>(Bf16::nearest(x - code));
  }
}

template <typename T>
void reference(const AddBf16& op, const Refs<T>& r) {
  const double scale = op.unscaled ? r.scalars->loss_scale : 1;
  for (int64_t i = 0; i < op.n; ++i) r.updates[0][i] += scale * r.reads[0][i];
}

template <typename T>
void reference(const EncodeInt8& op, const Refs<T>& r) {
  for (int64_t block = 0; block < code_blocks(op.n); ++block) {
    const int64_t first = block * kCodeBlock, last = std::min(op.n, first + kCodeBlock);
    float most = 0;
    for (int64_t i = first; i < last; ++i) {
      const float size = std::fabs(narrow(r.reads[0][i]));
      most = std::isnan(size) || size > most ? size : most;
      if (std::isnan(most)) break;
    }
    float scale = most / 127.0f;
    if (!std::isfinite(most)) scale = std::numeric_limits<float>::quiet_NaN();
    if (scale < std::numeric_limits<float>::min()) scale = 0;
    r.writes[1][block] = static_cast<double>(scale);
    for (int64_t i = first; i < last; ++i) {
      const bool is_some = scale > 0;
      const float q = is_some ? narrow(r.reads[0][i]) / scale : 0.0f;
      const uint32_t word = exchange_word(*r.scalars, Stream::exchange_rounding, op.tensor, i);
      const double up = (word >> 8) * 0x1p-24 < static_cast<double>(q - std::floor(q)) ? 1 : 0;
      r.writes[0][i] = std::clamp(std::floor(q) + up, -127.0, 127.0) + 128;
    }
  }
}

template <typename T>
void reference(const AddInt8& op, const Refs<T>& r) {
  for (int64_t i = 0; i < op.n; ++i) {
    r.updates[0][i] += (r.reads[0][i] - 128.0) * r.reads[1][i / kCodeBlock];
  }
}

template <typename T>
void reference(const EncodeTopK& op, const Refs<T>& r) {
  std::vector<int64_t> chosen(op.n);
  std::iota(chosen.begin(), chosen.end(), 0);
  std::vector<float> x(op.n);
  for (int64_t i = 0; i < op.n; ++i) x[i] = coded(r.reads[0][i], r.reads[1], r.updates[0][i]);
  if (op.random) {
    for (int64_t part = 0; part < op.k; ++part) {
      const int64_t from = op.n * part / op.k, size = op.n * (part + 1) / op.k - from;
      const uint64_t word = exchange_word(*r.scalars, Stream::exchange_choice, op.tensor, part);
      chosen[part] = from + static_cast<int64_t>(word * static_cast<uint64_t>(size) >> 32);
    }
  } else if (is_open(r.reads[1])) {
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](int64_t a, int64_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
    std::sort(chosen.begin(), chosen.begin() + op.k);
  }
  if (is_open(r.reads[1])) std::copy(x.begin(), x.end(), r.updates[0]);
  for (int64_t i = 0; i < op.k; ++i) {
    r.writes[0][i] = static_cast<double>(chosen[i]);
    r.writes[1][i] = is_open(r.reads[1]) ? r.updates[0][chosen[i]] : T(kNoNumber);
    if (is_open(r.reads[1])) r.updates[0][chosen[i]] = 0.0;
  }
}

template <typename T>
void reference(const AddTopK& op, const Refs<T>& r) {
  const double scale = r.scalars->loss_scale;
  for (int64_t i = 0; i < op.k; ++i) r.updates[0][whole(r.reads[0][i])] += scale * r.reads[1][i];
}

// c (N, M), element (i, j) = sum of a(i, k) b(k, j) over k < K.
template <typename T, typename A, typename B>
void multiply(T* c, int64_t N, int64_t M, int64_t K, A a, B b) {
  for (int64_t i = 0; i < N; ++i) {
    for (int64_t j = 0; j < M; ++j) {
      T sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += a(i, k) * b(k, j);
      c[i * M + j] = sum;
    }
  }
}

template <typename T>
void reference(const PowerProject& op, const Refs<T>& r) {
  if (!is_open(r.reads[1])) {
    std::fill_n(r.writes[0], op.N * op.R, T(kNoNumber));
    return;
  }
  T* x = r.updates[0];
  for (int64_t i = 0; i < op.N * op.K; ++i) x[i] += r.reads[0][i] * r.reads[1][1];
  multiply(
      r.writes[0], op.N, op.R, op.K, [&](int64_t i, int64_t k) { return x[i * op.K + k]; },
      [&](int64_t k, int64_t j) { return r.reads[2][k * op.R + j]; });
}

template <typename T>
void reference(const Orthonormalize& op, const Refs<T>& r) {
  using std::sqrt;
  T* p = r.updates[0];
  const auto dot = [&](int64_t a, int64_t b) {
    T sum = 0;
    for (int64_t i = 0; i < op.N; ++i) sum += p[i * op.R + a] * p[i * op.R + b];
    return sum;
  };
  for (int64_t j = 0; j < op.R; ++j) {
    const double before = real_part(T(sqrt(dot(j, j))));
    for (int64_t turn = 0; turn < 2 * j; ++turn) {  // twice
      const int64_t other = turn % j;
      const T share = dot(other, j);
      for (int64_t i = 0; i < op.N; ++i) p[i * op.R + j] -= share * p[i * op.R + other];
    }
    const T left = sqrt(dot(j, j));
    const bool is_zero = real_part(left) <= 1e-6 * before;
    for (int64_t i = 0; i < op.N; ++i) p[i * op.R + j] *= is_zero ? T(0) : T(1.0 / left);
  }
}

template <typename T>
void reference(const PowerBack& op, const Refs<T>& r) {
  T *q = r.writes[0], *x = r.updates[0];
  const T* p = r.reads[1];
  if (!is_open(r.reads[0])) {
    std::fill_n(q, op.K * op.R, T(kNoNumber));
    return;
  }
  multiply(
      q, op.K, op.R, op.N, [&](int64_t k, int64_t i) { return x[i * op.K + k]; },
      [&](int64_t i, int64_t j) { return p[i * op.R + j]; });
  for (int64_t i = 0; i < op.N * op.K; ++i) {
    for (int64_t j = 0; j < op.R; ++j) {
      x[i] -= p[i / op.K * op.R + j] * q[i % op.K * op.R + j];
    }
  }
}

template <typename T>
void reference(const PowerSum& op, const Refs<T>& r) {
  const T *p = r.reads[0], *q = r.reads[1];
  const double scale = r.scalars->loss_scale;
  multiply(
      r.writes[0], op.N, op.K, op.R, [&](int64_t i, int64_t j) { return p[i * op.R + j] * scale; },
      [&](int64_t j, int64_t k) { return q[k * op.R + j]; });
}

template <typename T>
void reference(const PowerKeep& op, const Refs<T>& r) {
  const T* q = r.reads[1];
  for (int64_t j = 0; j < op.R && is_open(r.reads[0]); ++j) {
    bool is_zero = true, is_finite = true;
    for (int64_t k = j; k < op.K * op.R; k += op.R) {
      is_zero = is_zero && real_part(q[k]) == 0;
      is_finite = is_finite && std::isfinite(real_part(q[k]));
    }
    for (int64_t k = j; k < op.K * op.R && !is_zero && is_finite; k += op.R) r.updates[0][k] = q[k];
  }
}

// What sent(i) says goes as its sign and the mean magnitude; what it is off by stays.
template <typename T, typename Sent>
void reference_signs(int64_t n, const T* gate, const Refs<T>& r, Sent sent) {
  std::fill_n(r.writes[0], sign_bytes(n), T(0));
  if (!is_open(gate)) {
    r.writes[1][0] = kNoNumber;
    return;
  }
  T* y = r.updates[0];
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float x = sent(i);
    y[i] = static_cast<double>(x);
    sum += std::fabs(x);
  }
  const double scale = sum / static_cast<double>(n);
  r.writes[1][0] = scale;
  for (int64_t i = 0; i < n; ++i) {
    const bool is_one = real_part(y[i]) >= 0;
    if (is_one) r.writes[0][i / 8] += static_cast<double>(1 << i % 8);
    y[i] -= is_one ? scale : -scale;
  }
}

template <typename T>
void reference(const SignEncode& op, const Refs<T>& r) {
  reference_signs(op.n, r.reads[1], r,
                  [&](int64_t i) { return coded(r.reads[0][i], r.reads[1], r.updates[0][i]); });
}

template <typename T>
void reference(const SignMomentum& op, const Refs<T>& r) {
  const float factor = narrow(r.reads[1][1]) * static_cast<float>(1 - op.beta1);
  const auto keep = static_cast<float>(op.beta1 / static_cast<double>(op.groups));
  reference_signs(op.n, r.reads[1], r, [&](int64_t i) {
    return std::fma(narrow(r.reads[0][i]), factor,
                    std::fma(narrow(r.reads[2][i]), keep, narrow(r.updates[0][i])));
  });
}

template <typename T>
void reference(const SignKeep& op, const Refs<T>& r) {
  if (!is_open(r.reads[2])) return;
  for (int64_t i = 0; i < op.n; ++i) {
    const bool is_one = whole(r.reads[0][i / 8]) >> i % 8 & 1;
    r.updates[0][i] = is_one ? r.reads[1][0] : T(-r.reads[1][0]);
  }
}

template <typename T>
void reference(const SignAdd& op, const Refs<T>& r) {
  const T scale = r.reads[1][0] * static_cast<double>(r.scalars->loss_scale);
  for (int64_t i = 0; i < op.n; ++i) {
    const bool is_one = whole(r.reads[0][i / 8]) >> i % 8 & 1;
    r.updates[0][i] += is_one ? scale : -scale;
  }
}

}  // namespace ebb
