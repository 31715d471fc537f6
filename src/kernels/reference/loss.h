// Twins of the losses. The tables are the doubles, whatever T is.
#pragma once

#include <algorithm>
#include <numbers>

#include "kernels/diffusion_tables.h"
#include "kernels/reference/refs.h"

namespace ebb {

// A number that depends on the log variance lv, and its derivative by lv.
template <typename T>
struct WithSlope {
  T value, slope;
};

// KL, in nats, from N(m1, e^lv1) to N(m2, e^lv) where difference = m1 - m2.
template <typename T>
WithSlope<T> gaussian_kl(double lv1, const T& difference, const T& lv) {
  using std::exp;
  const T ratio = exp(T(lv1 - lv));
  const T distance = square(difference) * exp(T(-lv));
  return {T(0.5 * (-1.0 + lv - lv1 + ratio + distance)), T(0.5 * (1.0 - ratio - distance))};
}

// The usual tanh approximation of the standard normal CDF at (distance e^(-lv/2)).
template <typename T>
WithSlope<T> normal_cdf(const T& distance, const T& lv) {
  using std::exp, std::tanh;
  const double scale = std::sqrt(2 / std::numbers::pi), cubic = 0.044715;
  const T z = distance * exp(T(-0.5 * lv));
  const T th = tanh(T(scale * (z + cubic * z * z * z)));
  const T density = 0.5 * (1.0 - th * th) * scale * (1.0 + 3.0 * cubic * z * z);
  return {T(0.5 * (1.0 + th)), T(density * (-0.5 * z))};
}

// -log of the probability, in nats, that N(mean, e^lv) falls into the bin of width 2/255 around x.
// The bins at both ends of [-1, 1] are open; no probability counts as less than 1e-12, and one that
// was raised to that has no slope.
template <typename T>
WithSlope<T> discretised_nll(const T& x, const T& mean, const T& lv) {
  using std::log;
  const WithSlope<T> upper = normal_cdf(T(x - mean + 1.0 / 255), lv);
  const WithSlope<T> lower = normal_cdf(T(x - mean - 1.0 / 255), lv);
  WithSlope<T> p = {upper.value - lower.value, upper.slope - lower.slope};
  if (real_part(x) < -0.999) p = upper;
  if (real_part(x) > 0.999) p = {T(1.0 - lower.value), -lower.slope};
  if (real_part(p.value) < 1e-12) p = {T(1e-12), T(0)};
  return {-log(p.value), -p.slope / p.value};
}

template <typename T>
void reference(const DdpmLoss& op, const Refs<T>& r) {
  const DiffusionTables& tables = diffusion_tables();
  const int64_t count = op.C * op.n, out_count = op.learn_sigma ? 2 * count : count;
  for (int64_t b = 0; b < op.B; ++b) {
    const T *out = r.reads[0] + b * out_count, *x = r.reads[1] + b * count;
    const T *noise = r.reads[2] + b * count, *xt = r.reads[3] + b * count;
    const int64_t t = whole(r.reads[4][b]);
    T* dout = r.writes[1] + b * out_count;
    const double share = 1.0 / static_cast<double>(count);
    const double weight = static_cast<double>(op.weight) * r.scalars->loss_scale;
    T loss = 0;
    for (int64_t i = 0; i < count; ++i) {
      const T error = out[i] - noise[i];
      loss += share * square(error);
      dout[i] = weight * share * 2.0 * error;
      if (!op.learn_sigma) continue;

      // Detached: vb sees the predicted mean as a constant, so the infinitesimal part is dropped.
      const T eps = T(real_part(out[i]));
      const T x0 = (xt[i] - tables.sqrt_1mac[t] * eps) / tables.sqrt_ac[t];
      const double low = tables.posterior_log_variance_clipped[t], high = tables.log_beta[t];
      const T f = 0.5 * (out[count + i] + 1.0);
      const T lv = f * high + (1.0 - f) * low;
      const double c1 = tables.posterior_mean_coef1[t], c2 = tables.posterior_mean_coef2[t];
      const WithSlope<T> vb = t == 0 ? discretised_nll(x[i], T(c1 * x0 + c2 * xt[i]), lv)
                                     : gaussian_kl(low, T(c1 * (x[i] - x0)), lv);
      loss += share * vb.value / std::numbers::ln2;
      dout[count + i] = weight * share * vb.slope * 0.5 * (high - low) / std::numbers::ln2;
    }
    r.writes[0][b] = loss;
  }
}

template <typename T>
void reference(const FlowLoss& op, const Refs<T>& r) {
  const int64_t count = op.C * op.n, out_count = op.learn_sigma ? 2 * count : count;
  for (int64_t b = 0; b < op.B; ++b) {
    const T *out = r.reads[0] + b * out_count, *x = r.reads[1] + b * count;
    const T* noise = r.reads[2] + b * count;
    T* dout = r.writes[1] + b * out_count;
    const double share = 1.0 / static_cast<double>(count);
    const double weight = static_cast<double>(op.weight) * r.scalars->loss_scale;
    std::fill_n(dout, out_count, T(0));
    T loss = 0;
    for (int64_t i = 0; i < count; ++i) {
      const T error = out[i] - (noise[i] - x[i]);
      loss += share * square(error);
      dout[i] = weight * share * 2.0 * error;
    }
    r.writes[0][b] = loss;
  }
}

template <typename T>
void reference(const SumLosses& op, const Refs<T>& r) {
  T sum = 0;
  for (int64_t b = 0; b < op.B; ++b) sum += r.reads[0][b];
  r.updates[0][0] += static_cast<double>(op.weight) * sum;
}

}  // namespace ebb
