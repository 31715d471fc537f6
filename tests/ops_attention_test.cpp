// Attention and its gradient.
#include "op_case.h"

namespace ebb {
namespace {

TEST(AttentionOps, AgreeWithTheReference) {
  for (const int64_t T : {1, 7, 65, 130, 256}) {
    for (const int64_t H : {1, 3}) {
      for (const int64_t d : {8, 12, 64, 72}) {
        const int64_t B = T < 100 ? 2 : 1;
        check_against_reference(Attention{B, T, H, d});
        check_against_reference(AttentionBackward{B, T, H, d});
      }
    }
  }
}

TEST(AttentionOps, SixteenBitsAgreeWithTheReference) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const int64_t T : {1, 65, 130, 300}) {
      for (const int64_t d : {12, 64}) {
        for (const int64_t B : {1, 20}) {  // few heads, which are cut, and many
          if (B * T > 3000) continue;
          check_against_reference(Attention{B, T, 2, d, type});
          check_against_reference(AttentionBackward{B, T, 2, d, type});
        }
      }
    }
  }
}

// Scores in the hundreds: a softmax that does not take off the largest one overflows. A score s in
// fp32 is off by 6e-8 |s|, and so is the logarithm of its weight.
TEST(AttentionOps, LargeScoresAgreeWithTheReference) {
  for (const int64_t T : {7, 65}) {
    check_against_reference(Attention{1, T, 3, 64}, {.tolerance = 1e-4, .scale = 12});
    check_against_reference(AttentionBackward{1, T, 3, 64}, {.tolerance = 1e-4, .scale = 12});
  }
}

TEST(AttentionOps, EqualScoresAverageTheValues) {
  const int64_t T = 4, d = 2;
  Column qkv(T * 3 * d, 0.0);
  for (int64_t t = 0; t < T; ++t) qkv[t * 3 * d + 2 * d] = static_cast<double>(t);
  const auto made = outputs_of(Attention{1, T, 1, d}, {qkv});
  for (int64_t t = 0; t < T; ++t) {
    EXPECT_NEAR(made[0][t * d], 1.5, 1e-15);
    EXPECT_NEAR(made[1][t], std::log(4.0), 1e-15);
  }
}

TEST(AttentionOps, GradientsAreExact) {
  check_gradient(Attention{2, 7, 3, 4}, {AttentionBackward{2, 7, 3, 4}});
  check_gradient(Attention{1, 1, 1, 8}, {AttentionBackward{1, 1, 1, 8}});
  check_gradient(Attention{1, 13, 1, 12}, {AttentionBackward{1, 13, 1, 12}});
}

}  // namespace
}  // namespace ebb
