// The two objectives. Each sample is summed by one thread in double and in order; it is a
// thousandth of the step's work.
#include <cmath>
#include <numbers>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/diffusion_tables.h"

namespace ebb::cpu {

namespace {

struct ValueAndSlope {
  double value, slope;  // slope: by the model's log-variance
};

// KL between the true posterior and the model's, by dmean = difference of their means.
ValueAndSlope kl(double dmean, double true_logvar, double logvar) {
  const double ratio = std::exp(true_logvar - logvar);
  const double square = dmean * dmean * std::exp(-logvar);
  return {0.5 * (-1 + logvar - true_logvar + ratio + square), 0.5 * (1 - ratio - square)};
}

// Negative log-likelihood of the 8-bit bin around x under N(mean, e^logvar), CDF by tanh.
ValueAndSlope bin_nll(double x, double mean, double logvar) {
  constexpr double kFloor = 1e-12;
  constexpr double kBin = 1.0 / 255;
  const double inverse_std = std::exp(-0.5 * logvar);
  struct Cdf {
    double value, slope;  // slope: by logvar
  };
  const auto cdf = [&](double distance) -> Cdf {
    const double z = distance * inverse_std;
    const double root = std::sqrt(2 / std::numbers::pi);
    const double th = std::tanh(root * (z + 0.044715 * z * z * z));
    const double dz = 0.5 * (1 - th * th) * root * (1 + 3 * 0.044715 * z * z);
    return {0.5 * (1 + th), dz * -0.5 * z};
  };
  const Cdf upper = cdf(x - mean + kBin);
  const Cdf lower = cdf(x - mean - kBin);
  double p = upper.value - lower.value;
  double slope = upper.slope - lower.slope;
  if (x < -0.999) {
    p = upper.value;
    slope = upper.slope;
  } else if (x > 0.999) {
    p = 1 - lower.value;
    slope = -lower.slope;
  }
  if (p < kFloor) return {-std::log(kFloor), 0};
  return {-std::log(p), -slope / p};
}

struct DdpmSample {
  const DdpmLoss& op;
  const float *out, *x, *noise, *xt;
  int t;
  double scale;  // of the gradient
  float* dout;

  double loss() const {
    const int64_t count = op.C * op.n;
    const double share = scale * op.weight / count;
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double error = static_cast<double>(out[i]) - noise[i];
      squares += error * error;
      dout[i] = static_cast<float>(2 * error * share);
    }
    return squares / count + (op.learn_sigma ? variational_bound(share) : 0);
  }

  double variational_bound(double share) const {
    const DiffusionTables& tables = diffusion_tables();
    const int64_t count = op.C * op.n;
    const double low = tables.posterior_log_variance_clipped[t];
    const double high = tables.log_beta[t];
    const double to_x0 = tables.sqrt_1mac[t] / tables.sqrt_ac[t];
    const double to_mean = tables.posterior_mean_coef1[t] * to_x0;
    double bits = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double f = 0.5 * (static_cast<double>(out[count + i]) + 1);
      const double logvar = f * high + (1 - f) * low;
      // x0 - x0_predicted = (predicted noise - noise) * to_x0: the mean is a constant here.
      const ValueAndSlope term =
          t > 0 ? kl((static_cast<double>(out[i]) - noise[i]) * to_mean, low, logvar)
                : bin_nll(x[i], xt[i] / tables.sqrt_ac[t] - to_x0 * out[i], logvar);
      bits += term.value;
      dout[count + i] =
          static_cast<float>(term.slope * 0.5 * (high - low) / std::numbers::ln2 * share);
    }
    return bits / (count * std::numbers::ln2);
  }
};

}  // namespace

void run(const DdpmLoss& op, const Call& call) {
  const int64_t in = op.C * op.n;
  const int64_t out = op.learn_sigma ? 2 * in : in;
  parallel_range(op.B, 1, 8 * out, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const DdpmSample sample{op,
                              call.read(0) + b * out,
                              call.read(1) + b * in,
                              call.read(2) + b * in,
                              call.read(3) + b * in,
                              static_cast<int>(call.read(4)[b]),
                              call.scalars->loss_scale,
                              call.write(1) + b * out};
      call.write(0)[b] = static_cast<float>(sample.loss());
    }
  });
}

void run(const FlowLoss& op, const Call& call) {
  const int64_t in = op.C * op.n;
  const int64_t out = op.learn_sigma ? 2 * in : in;
  parallel_range(op.B, 1, out, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const float* v = call.read(0) + b * out;
      const float* x = call.read(1) + b * in;
      const float* noise = call.read(2) + b * in;
      float* dout = call.write(1) + b * out;
      const double share = static_cast<double>(call.scalars->loss_scale) * op.weight / in;
      double squares = 0;
      for (int64_t i = 0; i < in; ++i) {
        const double error = static_cast<double>(v[i]) - (static_cast<double>(noise[i]) - x[i]);
        squares += error * error;
        dout[i] = static_cast<float>(2 * error * share);
      }
      for (int64_t i = in; i < out; ++i) dout[i] = 0;
      call.write(0)[b] = static_cast<float>(squares / in);
    }
  });
}

void run(const SumLosses& op, const Call& call) {
  float& total = call.update(0)[0];
  for (int64_t b = 0; b < op.B; ++b) total += call.read(0)[b] * op.weight;
}

}  // namespace ebb::cpu
