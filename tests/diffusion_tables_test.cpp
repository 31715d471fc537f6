#include "kernels/diffusion_tables.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace ebb {
namespace {

TEST(DiffusionTables, HaveTheKnownValues) {
  const DiffusionTables& t = diffusion_tables();
  EXPECT_DOUBLE_EQ(t.betas[0], 1e-4);
  EXPECT_DOUBLE_EQ(t.betas[999], 0.02);
  EXPECT_DOUBLE_EQ(t.alphas_cumprod[0], 1 - 1e-4);
  EXPECT_NEAR(t.alphas_cumprod[999], 4.036e-5, 5e-9);
  EXPECT_NEAR(t.posterior_log_variance_clipped[0], -9.8167, 5e-5);
}

TEST(DiffusionTables, TheFirstPosteriorVarianceIsReplacedInTheLogAlone) {
  const DiffusionTables& t = diffusion_tables();
  EXPECT_EQ(t.posterior_variance[0], 0);
  EXPECT_EQ(t.posterior_log_variance_clipped[0], t.posterior_log_variance_clipped[1]);
  EXPECT_DOUBLE_EQ(std::exp(t.posterior_log_variance_clipped[1]), t.posterior_variance[1]);
}

// The posterior mean of an image that was not noised at all is the image itself.
TEST(DiffusionTables, ThePosteriorMeanIsConsistent) {
  const DiffusionTables& t = diffusion_tables();
  EXPECT_NEAR(t.posterior_mean_coef1[0], 1, 1e-12);
  EXPECT_EQ(t.posterior_mean_coef2[0], 0);
  for (int i = 1; i < kDiffusionSteps; ++i) {
    // With eps = 0, xt = sqrt_ac x0 and the mean is sqrt_ac of the step before.
    EXPECT_NEAR(t.posterior_mean_coef1[i] + t.posterior_mean_coef2[i] * t.sqrt_ac[i],
                t.sqrt_ac[i - 1], 1e-12);
    EXPECT_NEAR(t.sqrt_ac[i] * t.sqrt_ac[i] + t.sqrt_1mac[i] * t.sqrt_1mac[i], 1, 1e-14);
    EXPECT_LT(t.posterior_log_variance_clipped[i], t.log_beta[i]);
  }
}

TEST(RespacedSteps, OfTwoHundredAndFifty) {
  const std::vector<int> steps = respaced_steps(250);
  ASSERT_EQ(steps.size(), 250u);
  EXPECT_EQ(std::vector<int>(steps.begin(), steps.begin() + 4), (std::vector<int>{0, 4, 8, 12}));
  EXPECT_EQ(steps[248], 995);
  EXPECT_EQ(steps[249], 999);
}

TEST(RespacedSteps, AscendFromTheFirstToTheLast) {
  for (int k = 2; k <= kDiffusionSteps; ++k) {
    const std::vector<int> steps = respaced_steps(k);
    EXPECT_EQ(steps.front(), 0);
    EXPECT_EQ(steps.back(), 999);
    for (int i = 1; i < k; ++i) EXPECT_LT(steps[i - 1], steps[i]);
  }
}

TEST(RespacedSteps, HalvesGoToEven) {
  EXPECT_EQ(respaced_steps(3), (std::vector<int>{0, 500, 999}));
  EXPECT_EQ(respaced_steps(7)[1], 166);  // 166.5
}

TEST(RespacedSteps, OneStepStartsAtPureNoise) {
  EXPECT_EQ(respaced_steps(1), std::vector<int>{999});
}

TEST(RespacedSteps, RefusesOtherCounts) {
  EXPECT_THROW(respaced_steps(0), Error);
  EXPECT_THROW(respaced_steps(-3), Error);
  EXPECT_THROW(respaced_steps(1001), Error);
}

}  // namespace
}  // namespace ebb
