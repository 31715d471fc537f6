// The activations and the plain moves of numbers.
#include "op_case.h"

namespace ebb {
namespace {

const int64_t kCounts[] = {1, 7, 16, 17, 1000, 100003};

// Where exp overflows, where tanh is 1 in fp32, and both zeros.
void extreme_x(OpValues<double>& v) {
  Column& x = v.reads.back();
  const double far[] = {0.0, -0.0, 12, -12, 30, -30, 89, -89, 1000, -1000, 1e-20, -1e-20};
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(far[i % std::size(far)]);
}

TEST(ElementwiseOps, AgreeWithTheReference) {
  for (const int64_t n : kCounts) {
    check_against_reference(Silu{n});
    check_against_reference(SiluBackward{n});
    check_against_reference(Gelu{n});
    check_against_reference(Add{n});
    check_against_reference(Repeat{n}, {.tolerance = kExact});
    check_against_reference(Zero{n}, {.tolerance = kExact});
  }
}

TEST(ElementwiseOps, ColumnsAgreeWithTheReference) {
  for (const int64_t rows : {1, 3, 40}) {
    check_against_reference(CopyColumns{rows, 9, 5, 5, 4, 0}, {.tolerance = kExact});
    check_against_reference(CopyColumns{rows, 3, 70, 3, 0, 67}, {.tolerance = kExact});
    check_against_reference(CopyColumns{rows, 9, 5, 5, 4, 0, DType::bf16}, {.tolerance = kExact});
  }
}

TEST(ElementwiseOps, SixteenBitsAgreeWithTheReference) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const int64_t n : {1, 17, 1000, 20003}) {
      check_against_reference(Gelu{n, type});
      check_against_reference(Zero{n, type}, {.tolerance = kExact});
      check_against_reference(SquaredNorm{n, 0, type});
    }
    check_against_reference(AddPositions{3, 7, 50, type});
  }
}

TEST(ElementwiseOps, WideInputsAgreeWithTheReference) {
  for (const double scale : {4.0, 20.0}) {
    check_against_reference(Silu{1000}, {.scale = scale});
    check_against_reference(SiluBackward{1000}, {.scale = scale});
    check_against_reference(Gelu{1000}, {.scale = scale});
    check_against_reference(LinearBackwardInput{1, 1000, 1, true}, {.scale = scale});
  }
}

TEST(ElementwiseOps, ExtremeInputsAgreeWithTheReference) {
  for (const int64_t n : {12, 29}) {
    check_against_reference(Silu{n}, {.adjust = extreme_x});
    check_against_reference(SiluBackward{n}, {.adjust = extreme_x});
    check_against_reference(Gelu{n}, {.adjust = extreme_x});
    check_against_reference(LinearBackwardInput{1, n, 1, true}, {.adjust = extreme_x});
  }
}

TEST(ElementwiseOps, GradientsAreExact) {
  check_gradient(Silu{50}, {SiluBackward{50}});
  constexpr double kStep = 1e-50;
  for (double x = -12; x < 12; x += 0.37) {
    const double slope = gelu(std::complex<double>(x, kStep)).imag() / kStep;
    EXPECT_NEAR(gelu_slope(x), slope, 1e-14) << x;
  }
}

TEST(ElementwiseOps, TheTwinsHaveTheKnownValues) {
  const Column x = {0.0, 1.0, -2.0};
  const Column silu = outputs_of(Silu{3}, {x})[0], gelu = outputs_of(Gelu{3}, {x})[0];
  EXPECT_DOUBLE_EQ(silu[0], 0);
  EXPECT_NEAR(silu[1], 0.7310585786300049, 1e-15);
  EXPECT_NEAR(silu[2], -0.2384058440442351, 1e-15);
  EXPECT_NEAR(gelu[1], 0.8411919906082768, 1e-15);
  EXPECT_NEAR(gelu[2], -0.0454023059122249, 1e-15);
}

}  // namespace
}  // namespace ebb
