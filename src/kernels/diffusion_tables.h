// The tables of the 1000-step diffusion with linear betas, made once in double.
// Kernels that work in fp32 round an entry when they use it; the reference twins use the doubles.
#pragma once

#include <array>
#include <vector>

#include "program/ops.h"

namespace ebb {

// One entry per step t in [0, 1000).
struct DiffusionTables {
  using Table = std::array<double, kDiffusionSteps>;

  Table betas;                           // 1e-4 to 0.02, linear
  Table alphas_cumprod;                  // product of (1 - beta) up to and with t
  Table sqrt_ac, sqrt_1mac;              // xt = sqrt_ac x0 + sqrt_1mac eps
  Table log_beta;                        // log of betas: the model's largest log variance
  Table posterior_variance;              // of q(x_{t-1} | x_t, x_0); 0 at t = 0
  Table posterior_log_variance_clipped;  // its log, where entry 0 is that of entry 1
  Table posterior_mean_coef1;            // posterior mean = coef1 x0 + coef2 xt
  Table posterior_mean_coef2;
};

const DiffusionTables& diffusion_tables();

// The k steps in [0, 1000), ascending, that a sampler of k steps visits: round(i * 999 / (k - 1)),
// halves to even. One step alone is {999}, for sampling starts at pure noise. k must be in
// [1, 1000].
std::vector<int> respaced_steps(int k);

}  // namespace ebb
