#include "kernels/diffusion_tables.h"

#include <cmath>

#include "base/error.h"

namespace ebb {
namespace {

DiffusionTables make_tables() {
  DiffusionTables s{};
  double ac = 1;
  for (int t = 0; t < kDiffusionSteps; ++t) {
    const double beta = 1e-4 + (0.02 - 1e-4) * t / (kDiffusionSteps - 1);
    const double ac_prev = ac;
    ac *= 1 - beta;
    s.betas[t] = beta;
    s.alphas_cumprod[t] = ac;
    s.sqrt_ac[t] = std::sqrt(ac);
    s.sqrt_1mac[t] = std::sqrt(1 - ac);
    s.log_beta[t] = std::log(beta);
    s.posterior_variance[t] = beta * (1 - ac_prev) / (1 - ac);
    s.posterior_mean_coef1[t] = beta * std::sqrt(ac_prev) / (1 - ac);
    s.posterior_mean_coef2[t] = (1 - ac_prev) * std::sqrt(1 - beta) / (1 - ac);
  }
  for (int t = 0; t < kDiffusionSteps; ++t) {
    s.posterior_log_variance_clipped[t] = std::log(s.posterior_variance[t == 0 ? 1 : t]);
  }
  return s;
}

}  // namespace

const DiffusionTables& diffusion_tables() {
  static const DiffusionTables tables = make_tables();
  return tables;
}

std::vector<int> respaced_steps(int k) {
  if (k < 1 || k > kDiffusionSteps) {
    fail(Exit::usage,
         fmt::format("sampling in {} steps: wanted 1 to {} steps", k, kDiffusionSteps));
  }
  if (k == 1) return {kDiffusionSteps - 1};
  std::vector<int> steps(k);
  for (int i = 0; i < k; ++i) {
    // The quotient of two exact doubles: a half is exact too, and nearbyint takes it to even.
    steps[i] = static_cast<int>(std::nearbyint(i * (kDiffusionSteps - 1.0) / (k - 1)));
  }
  return steps;
}

}  // namespace ebb
