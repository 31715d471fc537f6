#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace ebb {
namespace {

using Block = std::array<uint32_t, 4>;

// The published known answers of philox4x32-10.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0, 0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox(~uint64_t{0}, ones, ones, ones, ones),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x03707344, 0x13198a2e, 0x85a308d3, 0x243f6a88),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryPartOfTheKeyMatters) {
  const std::set<Block> made = {philox(1, 2, 3, 4, 5),
                                philox(9, 2, 3, 4, 5),
                                philox(1, 9, 3, 4, 5),
                                philox(1, 2, 9, 4, 5),
                                philox(1, 2, 3, 9, 5),
                                philox(1, 2, 3, 4, 9),
                                philox(1 + (uint64_t{1} << 32), 2, 3, 4, 5)};
  EXPECT_EQ(made.size(), 7u);
}

TEST(OpenUnit, IsStrictlyInside) {
  EXPECT_GT(open_unit(0), 0);
  EXPECT_LT(open_unit(0xffffffff), 1);
  EXPECT_DOUBLE_EQ(open_unit(0x80000000), 0.5 + 0x1p-33);
}

TEST(Normals, AreFiniteAtTheEndsOfTheBits) {
  for (const uint32_t bits : {0u, 0xffffffffu}) {
    for (const double z : normals({bits, bits, bits, bits})) EXPECT_TRUE(std::isfinite(z));
  }
}

// Bounds are four standard errors of the moments of a standard normal.
TEST(Normals, HaveTheMomentsOfANormal) {
  const int blocks = 100000;
  const double count = 4.0 * blocks;
  std::array<double, 5> moment{};
  double across = 0;  // the two numbers of one pair are independent too
  for (int i = 0; i < blocks; ++i) {
    const auto z = normals(philox(7, 1, 0, 0, i));
    across += z[0] * z[1] + z[2] * z[3];
    for (const double x : z) {
      for (int k = 1; k <= 4; ++k) moment[k] += std::pow(x, k) / count;
    }
  }
  EXPECT_NEAR(moment[1], 0, 4 * std::sqrt(1 / count));
  EXPECT_NEAR(moment[2], 1, 4 * std::sqrt(2 / count));
  EXPECT_NEAR(moment[3], 0, 4 * std::sqrt(15 / count));
  EXPECT_NEAR(moment[4], 3, 4 * std::sqrt(96 / count));
  EXPECT_NEAR(across / (2.0 * blocks), 0, 4 * std::sqrt(1 / (2.0 * blocks)));
}

}  // namespace
}  // namespace ebb
