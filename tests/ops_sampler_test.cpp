// Guidance and the steps of the samplers.
#include "op_case.h"

namespace ebb {
namespace {

struct Sizes {
  int64_t B, C, n;
};

const Sizes kGrid[] = {{1, 1, 1}, {1, 3, 7}, {2, 4, 17}, {3, 4, 1000}, {9, 4, 1024}};

TEST(SamplerOps, GuidanceAgreesWithTheReference) {
  for (const int64_t B : {1, 7}) {
    check_against_reference(LabelsAndNull{B, 10}, {.tolerance = kExact});
  }
  for (const auto& [B, C, n] : kGrid) {
    for (const int64_t guided : {int64_t{0}, std::min<int64_t>(C, 3), C}) {
      check_against_reference(Guide{B, C, n, guided});
    }
    check_against_reference(Guide{B, 2 * C, n, C});
  }
}

// Four terms of either sign, and in a single element they may nearly cancel.
constexpr double kCancelling = 6e-6;

TEST(SamplerOps, DiffusionStepsAgreeWithTheReference) {
  for (const auto& [B, C, n] : kGrid) {
    for (const bool learn_sigma : {false, true}) {
      for (const bool noisy : {false, true}) {
        for (const bool clip : {false, true}) {
          check_against_reference(DiffusionStep{B, C, n, learn_sigma, noisy, clip},
                                  {.tolerance = kCancelling});
        }
      }
    }
  }
}

TEST(SamplerOps, FlowStepsAgreeWithTheReference) {
  for (const auto& [B, C, n] : kGrid) {
    for (const bool learn_sigma : {false, true}) {
      for (const bool second : {false, true}) {
        for (const int first : {0, 2}) {
          check_against_reference(FlowStep{B, C, n, learn_sigma, second, first});
        }
      }
    }
  }
}

// With DDIM's coefficients, a perfect prediction lands on the same noise at the earlier time.
TEST(SamplerOps, ADdimStepWithTheRightNoiseIsExact) {
  const DiffusionTables& tables = diffusion_tables();
  const int from = 700, to = 300;
  Scalars s;
  s.coef = {static_cast<float>(1 / tables.sqrt_ac[from]),
            static_cast<float>(tables.sqrt_1mac[from] / tables.sqrt_ac[from]),
            static_cast<float>(tables.sqrt_ac[to]), 0, static_cast<float>(tables.sqrt_1mac[to])};
  const double x0 = 0.5, eps = -1.25;
  const double xt = tables.sqrt_ac[from] * x0 + tables.sqrt_1mac[from] * eps;
  for (const bool clip : {false, true}) {
    OpValues<double> v{{{xt}, {eps}}, {Column(1)}, {}};
    run_reference(DiffusionStep{1, 1, 1, false, false, clip}, v.refs(s));
    EXPECT_NEAR(v.writes[0][0], tables.sqrt_ac[to] * x0 + tables.sqrt_1mac[to] * eps, 1e-6);
  }
}

}  // namespace
}  // namespace ebb
