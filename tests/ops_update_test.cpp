// The gradient's norm, clipping and AdamW with EMA.
#include "op_case.h"

namespace ebb {
namespace {

constexpr double kDoubleSum = 1e-12;  // the norms are f64

const int64_t kCounts[] = {1, 7, 17, 1000, 100003};

TEST(UpdateOps, AgreeWithTheReference) {
  for (const int64_t n : kCounts) {
    for (const int64_t slot : {0, 4})
      check_against_reference(SquaredNorm{n, slot}, {.tolerance = kDoubleSum});
    for (const bool ema : {false, true}) {
      for (const float decay : {0.0f, 0.1f}) {
        check_against_reference(AdamW{n, 0.9f, 0.999f, 1e-8f, decay, ema});
      }
    }
  }
  for (const int64_t count : {1, 7, 130}) {
    for (const float limit : {0.0f, 0.5f, 1000.0f}) {
      check_against_reference(ClipScale{0, count, limit});
    }
  }
}

TEST(UpdateOps, ANormThatIsNotFiniteChangesNothing) {
  for (const double norm : {double{INFINITY}, -double{INFINITY}, std::nan("")}) {
    for (const bool ema : {false, true}) {
      Check check{.tolerance = kExact};
      check.adjust = [norm](OpValues<double>& v) { v.reads[1] = {norm, 1.0}; };
      check_against_reference(AdamW{100, 0.9f, 0.999f, 1e-8f, 0.1f, ema}, check);
    }
  }
}

// Gradients that are not finite come with a norm that is not: whatever they hold, it is not used.
TEST(UpdateOps, GradientsThatAreNotFiniteChangeNothing) {
  Check check{.tolerance = kExact};
  check.adjust = [](OpValues<double>& v) {
    v.reads[0].assign(v.reads[0].size(), INFINITY);
    v.reads[1] = {INFINITY, 0.0};
  };
  check_against_reference(AdamW{100, 0.9f, 0.999f, 1e-8f, 0.1f, true}, check);
}

TEST(UpdateOps, AGradientThatIsNotFiniteHasNoFiniteNorm) {
  for (const float bad : {INFINITY, NAN}) {
    const SquaredNorm square{100, 0};
    OpValues<double> v{{Column(100, 1.0)}, {Column(1)}, {}};
    v.reads[0][57] = bad;
    v.writes = run_on_device(square, v, test_scalars(), std::byte{0}).writes;
    EXPECT_FALSE(std::isfinite(v.writes[0][0]));
    const OpValues<double> clip{{v.writes[0]}, {Column(2)}, {}};
    EXPECT_FALSE(std::isfinite(
        run_on_device(ClipScale{0, 1, 1.0f}, clip, test_scalars(), std::byte{0}).writes[0][0]));
  }
}

// Squares past the range of fp32 still have a norm: the sum is in double.
TEST(UpdateOps, HugeAndTinyGradientsHaveANorm) {
  for (const double size : {1e25, 1e-25}) {
    check_against_reference(SquaredNorm{1000, 0}, {.tolerance = kDoubleSum, .scale = size});
  }
}

TEST(UpdateOps, ClippingIsThatOfTorch) {
  const Column norms = {9.0, 16.0};
  const auto factor = [&](float limit) {
    return outputs_of(ClipScale{0, 2, limit}, {norms})[0][1];
  };
  EXPECT_EQ(outputs_of(ClipScale{0, 2, 1}, {norms})[0][0], 5);
  EXPECT_EQ(factor(0), 1);
  EXPECT_EQ(factor(6), 1);
  EXPECT_DOUBLE_EQ(factor(2), 2 / (5 + 1e-6));
}

// From rest, the first step goes against the sign of the gradient by the learning rate.
TEST(UpdateOps, TheFirstAdamWStepHasTheSizeOfTheRate) {
  Scalars s;
  s.lr = 0.125f;
  s.bias1 = 0.5f;
  s.bias2 = 0.25f;
  s.ema_decay = 0.75f;
  OpValues<double> v{{{3.0, -0.01}, {1, 1}}, {}, {{2, 2}, {0, 0}, {0, 0}, {2, 2}}};
  run_reference(AdamW{2, 0.5f, 0.75f, 0, 0.5f, true}, v.refs(s));
  const double decayed = 2 * (1 - 0.125 * 0.5);
  EXPECT_NEAR(v.updates[0][0], decayed - 0.125, 1e-12);
  EXPECT_NEAR(v.updates[0][1], decayed + 0.125, 1e-12);
  EXPECT_NEAR(v.updates[1][0], 1.5, 1e-12);
  EXPECT_NEAR(v.updates[2][0], 2.25, 1e-12);
  EXPECT_NEAR(v.updates[3][0], 0.75 * 2 + 0.25 * (decayed - 0.125), 1e-12);
}

}  // namespace
}  // namespace ebb
