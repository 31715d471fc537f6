// The code of 8-bit moments, and numbers of 16 bits.
#include "kernels/moment_code.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"

namespace ebb {
namespace {

std::vector<float> magnitudes(const MomentCode& code, int first) {
  std::vector<float> made;
  for (int i = first; i < 256; ++i) {
    if (code.value(static_cast<uint8_t>(i)) > 0)
      made.push_back(code.value(static_cast<uint8_t>(i)));
  }
  return made;
}

TEST(MomentCode, HasTheLargestOfABlockAndMoreValuesWhereItIsLarge) {
  const auto with_sign = magnitudes(MomentCode::with_sign(), MomentCode::kZero);
  const auto without = magnitudes(MomentCode::without_sign(), 0);
  EXPECT_EQ(with_sign.size(), 127u);
  EXPECT_EQ(without.size(), 254u);
  for (const auto& values : {with_sign, without}) {
    EXPECT_EQ(values.back(), 1.0f);
    EXPECT_TRUE(std::is_sorted(values.begin(), values.end()));
    const auto above = [&](float x) {
      return std::count_if(values.begin(), values.end(), [=](float v) { return v > x; });
    };
    EXPECT_NEAR(static_cast<double>(above(0.1f)), static_cast<double>(values.size()) / 2, 1);
  }
  EXPECT_EQ(MomentCode::with_sign().value(MomentCode::kZero), 0.0f);
  EXPECT_EQ(MomentCode::without_sign().value(0), 0.0f);
  for (int i = 1; i < 128; ++i) {
    EXPECT_EQ(MomentCode::with_sign().value(static_cast<uint8_t>(128 - i)),
              -MomentCode::with_sign().value(static_cast<uint8_t>(128 + i)));
  }
}

TEST(MomentCode, FindsTheNearestOfAllMagnitudes) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(-8, 0);
  for (const auto* code : {&MomentCode::with_sign(), &MomentCode::without_sign()}) {
    std::vector<float> values = {0};
    for (const float v : magnitudes(*code, code == &MomentCode::with_sign() ? 128 : 0)) {
      values.push_back(v);
    }
    for (int trial = 0; trial < 20000; ++trial) {
      const auto x = static_cast<float>(std::pow(10.0, exponent(random)));
      const int found = code->magnitude(x, 0.5f);
      for (const float v : values) {
        ASSERT_LE(std::abs(values[found] - x), std::abs(v - x) * 1.00001f) << x;
      }
    }
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(code->magnitude(values[i], 0.5f), static_cast<int>(i));
    }
  }
}

// A checkpoint holds the values: coding them again gives the codes that they came from.
TEST(MomentCode, CodingWhatWasDecodedChangesNothing) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 1e-3f);
  const auto nearest = [](int64_t) { return 0.5f; };
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t n = trial % 2 == 0 ? kMomentBlock : 1 + trial % 100;
    float m[kMomentBlock], roots[kMomentBlock];
    uint8_t codes[kMomentBlock], again[kMomentBlock];
    float scale, scale_again;
    for (int64_t i = 0; i < n; ++i) {
      m[i] = std::pow(normal(random), 1 + trial % 3);
      roots[i] = std::abs(m[i]);
    }
    encode_first({codes, &scale}, m, n, nearest);
    decode_first(m, {codes, &scale}, n);
    encode_first({again, &scale_again}, m, n, nearest);
    EXPECT_EQ(scale, scale_again);
    EXPECT_TRUE(std::equal(codes, codes + n, again));
    encode_second({codes, &scale}, roots, n, nearest);
    float v[kMomentBlock];
    decode_second(v, {codes, &scale}, n);
    for (int64_t i = 0; i < n; ++i) roots[i] = std::sqrt(v[i]);
    encode_second({again, &scale_again}, roots, n, nearest);
    EXPECT_EQ(scale, scale_again);
    EXPECT_TRUE(std::equal(codes, codes + n, again));
  }
}

TEST(MomentCode, OnlyZeroDividesAsZero) {
  const float roots[4] = {1, 1e-12f, 0, 1e-30f};
  uint8_t codes[4];
  float scale;
  for (const float share : {0.0f, 0.5f, 0.9999f}) {
    encode_second({codes, &scale}, roots, 4, [=](int64_t) { return share; });
    EXPECT_GT(codes[1], 0);
    EXPECT_EQ(codes[2], 0);
    EXPECT_GT(codes[3], 0);
  }
}

TEST(MomentCode, NumbersThatAreNotFiniteDoNoHarm) {
  const float bad[4] = {std::numeric_limits<float>::infinity(), std::nanf(""), -1, 2};
  uint8_t codes[4];
  float scale;
  encode_first({codes, &scale}, bad, 4, [](int64_t) { return 0.5f; });
  const float roots[3] = {std::numeric_limits<float>::infinity(), std::nanf(""), 2};
  encode_second({codes, &scale}, roots, 3, [](int64_t) { return 0.5f; });
  EXPECT_EQ(scale, std::numeric_limits<float>::infinity());
}

TEST(Float16, AnyFp32IsItsTwoHalves) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 100000; ++trial) {
    const auto bits = static_cast<uint32_t>(random());
    const auto x = std::bit_cast<float>(bits);
    const SplitFloat parts = SplitFloat::of(x);
    EXPECT_EQ(std::bit_cast<uint32_t>(parts.whole()), bits);
    if (!std::isfinite(x) || std::abs(x) > 3e38f || std::abs(x) < 1e-37f) continue;
    EXPECT_LE(std::abs(static_cast<float>(parts.high) - x), std::abs(x) * 0x1p-8f);
  }
}

TEST(Float16, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(static_cast<float>(Bf16::nearest(1 + 0x1p-8f)), 1.0f);
  EXPECT_EQ(static_cast<float>(Bf16::nearest(1 + 0x1.8p-7f)), 1 + 0x1p-6f);
  EXPECT_EQ(static_cast<float>(Bf16::nearest(1 + 0x1.1p-8f)), 1 + 0x1p-7f);
  EXPECT_TRUE(std::isnan(static_cast<float>(Bf16::nearest(std::nanf("")))));
  EXPECT_TRUE(std::isinf(static_cast<float>(Bf16::nearest(3.4e38f))));
  EXPECT_EQ(static_cast<float>(F16::nearest(1 + 0x1p-11f)), 1.0f);
  EXPECT_EQ(static_cast<float>(F16::nearest(65504.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(static_cast<float>(F16::nearest(70000.0f))));
}

}  // namespace
}  // namespace ebb
