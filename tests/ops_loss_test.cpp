// The losses, each with its gradient in the same op.
#include "op_case.h"

namespace ebb {
namespace {

struct Sizes {
  int64_t B, C, n;
};

// With two samples or more, the first is at t = 0 and the second at t = 999.
const Sizes kGrid[] = {{1, 1, 1}, {1, 3, 7}, {2, 1, 17}, {5, 4, 16}, {7, 3, 1000}, {33, 4, 256}};

// At the first steps x - x0 is a hundredth of xt: a kernel that takes it from the noise instead
// differs from the twin by the rounding of xt to fp32, a hundredfold.
constexpr double kVariance = 5e-6;

Check at_time(double t, double tolerance) {
  return {
      .tolerance = tolerance, .adjust = [t](OpValues<double>& v) {
        Column& times = v.reads[4];
        std::fill(times.begin(), times.end(), t);
        const auto B = static_cast<int64_t>(times.size());
        const auto n = static_cast<int64_t>(v.reads[1].size()) / B;
        v.reads[3] = outputs_of(Diffuse{B, n, Objective::ddpm}, {v.reads[1], v.reads[2], times})[0];
        for (double& x : v.reads[3]) x = static_cast<float>(x);
      }};
}

TEST(LossOps, AgreeWithTheReference) {
  for (const auto& [B, C, n] : kGrid) {
    check_against_reference(DdpmLoss{B, C, n, false, 0.25f});
    check_against_reference(FlowLoss{B, C, n, false, 0.25f});
    check_against_reference(FlowLoss{B, C, n, true, 0.25f});
  }
  for (const int64_t B : {1, 7, 1000}) check_against_reference(SumLosses{B, 0.125f});
}

TEST(LossOps, LearnedVarianceAgreesWithTheReference) {
  for (const auto& [B, C, n] : kGrid) {
    check_against_reference(DdpmLoss{B, C, n, true, 0.25f}, {.tolerance = kVariance});
  }
}

TEST(LossOps, LearnedVarianceAgreesAtEveryKindOfStep) {
  for (const double t : {0.0, 1.0, 2.0, 10.0, 500.0, 999.0}) {
    SCOPED_TRACE(t);
    check_against_reference(DdpmLoss{2, 3, 100, true, 1.0f}, at_time(t, kVariance));
  }
}

// A network that has just been made gives 0 for everything, in every element.
TEST(LossOps, AZeroOutputAgreesWithTheReference) {
  Check check{.tolerance = kVariance};
  check.adjust = [](OpValues<double>& v) { std::fill(v.reads[0].begin(), v.reads[0].end(), 0.0); };
  check_against_reference(DdpmLoss{5, 4, 64, true, 1.0f}, check);
}

// So far off that the bin's probability is below the clamp: a loss of -log2(1e-12), no gradient.
TEST(LossOps, AHopelessPredictionIsClamped) {
  const Column x = {0.25}, noise = {0.0}, xt = {0.25}, t = {0.0};
  const auto made = outputs_of(DdpmLoss{1, 1, 1, true, 1}, {{30.0, 0.0}, x, noise, xt, t});
  EXPECT_NEAR(made[0][0], 900 - std::log2(1e-12), 1e-9);
  EXPECT_EQ(made[1][1], 0);
  Check check{.adjust = [&](OpValues<double>& v) { v.reads = {{30.0, 0.0}, x, noise, xt, t}; }};
  check_against_reference(DdpmLoss{1, 1, 1, true, 1}, check);
}

TEST(LossOps, GradientsAreExact) {
  for (const bool learn_sigma : {false, true}) {
    for (const auto& [B, C, n] : {Sizes{4, 2, 6}, Sizes{1, 1, 5}}) {
      const GradientCheck check{.cotangents = {{"losses", 0.25}}};
      const DdpmLoss ddpm{B, C, n, learn_sigma, 0.25f};
      check_gradient(ddpm, {ddpm}, check);
      const FlowLoss flow{B, C, n, learn_sigma, 0.25f};
      check_gradient(flow, {flow}, check);
    }
  }
}

TEST(LossOps, EveryStepHasAnExactGradient) {
  for (const double t : {0.0, 1.0, 500.0, 999.0}) {
    SCOPED_TRACE(t);
    const DdpmLoss op{1, 2, 9, true, 0.5f};
    check_gradient(op, {op},
                   {.cotangents = {{"losses", 0.5}}, .adjust = at_time(t, kVariance).adjust});
  }
}

// The right noise and the posterior's own variance (v = -1): nothing is left to learn at t > 0.
TEST(LossOps, APerfectPredictionCostsNothing) {
  for (const double t : {1.0, 500.0, 999.0}) {
    const Column x = {0.5, -0.25}, noise = {0.3, -1.2}, times = {t};
    const Column xt = outputs_of(Diffuse{1, 2, Objective::ddpm}, {x, noise, times})[0];
    const Column out = {0.3, -1.2, -1, -1};
    const auto made = outputs_of(DdpmLoss{1, 1, 2, true, 1}, {out, x, noise, xt, times});
    EXPECT_NEAR(made[0][0], 0, 1e-12);
    for (const double g : made[1]) EXPECT_NEAR(g, 0, 1e-12);
  }
}

TEST(LossOps, TheKlHasTheKnownValues) {
  EXPECT_NEAR(gaussian_kl(0.0, 0.0, 0.0).value, 0, 1e-15);
  EXPECT_NEAR(gaussian_kl(0.0, 1.0, 0.0).value, 0.5, 1e-15);  // means one deviation apart
  EXPECT_NEAR(gaussian_kl(0.0, 0.0, std::log(4.0)).value, std::log(2.0) - 0.375, 1e-15);
}

// The 256 bins of an 8-bit image share out the whole probability.
TEST(LossOps, TheBinsOfThePixelsSumToOne) {
  for (const double mean : {-0.9, 0.0, 0.999}) {
    for (const double lv : {-9.8, -4.0, 0.0}) {
      double sum = 0;
      for (int level = 0; level < 256; ++level) {
        sum += std::exp(-discretised_nll(-1 + 2 * level / 255.0, mean, lv).value);
      }
      EXPECT_NEAR(sum, 1, 1e-9) << mean << " " << lv;
    }
  }
}

}  // namespace
}  // namespace ebb
