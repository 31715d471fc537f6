// The embedders and the image <-> token rearrangements.
#include "op_case.h"

namespace ebb {
namespace {

struct Sizes {
  int64_t B, C, S, p;
};

const Sizes kGrid[] = {{1, 1, 1, 1},  {1, 3, 4, 2},  {2, 4, 8, 2},
                       {3, 1, 28, 4}, {2, 8, 32, 8}, {1, 5, 9, 3}};

TEST(PatchOps, AgreeWithTheReference) {
  for (const auto& [B, C, S, p] : kGrid) {
    check_against_reference(Patchify{B, C, S, p}, {.tolerance = kExact});
    check_against_reference(Unpatchify{B, C, S, p}, {.tolerance = kExact});
    check_against_reference(UnpatchifyBackward{B, C, S, p}, {.tolerance = kExact});
  }
}

TEST(PatchOps, GradientsAreExact) {
  check_gradient(Unpatchify{2, 3, 4, 2}, {UnpatchifyBackward{2, 3, 4, 2}});
}

// 2 channels of 4 x 4, patches of 2 x 2: element = 100 channel + 10 row + column.
TEST(PatchOps, TheTwinsOrderATokenAsThePaperDoes) {
  Column image(32);
  for (int i = 0; i < 32; ++i) image[i] = 100 * (i / 16) + 10 * (i / 4 % 4) + i % 4;
  const Column patches = outputs_of(Patchify{1, 2, 4, 2}, {image})[0];
  const Column second(patches.begin() + 8, patches.begin() + 16);  // the upper right patch
  EXPECT_EQ(second, (Column{2, 3, 12, 13, 102, 103, 112, 113}));   // channel, row, column

  const Column tokens = outputs_of(UnpatchifyBackward{1, 2, 4, 2}, {image})[0];
  const Column third(tokens.begin() + 16, tokens.begin() + 24);    // the lower left token
  EXPECT_EQ(third, (Column{20, 120, 21, 121, 30, 130, 31, 131}));  // row, column, channel
  EXPECT_EQ(outputs_of(Unpatchify{1, 2, 4, 2}, {tokens})[0], image);
}

TEST(EmbedOps, AgreeWithTheReference) {
  for (const int64_t D : {1, 13, 50, 384}) {
    for (const int64_t T : {1, 7, 65}) check_against_reference(AddPositions{3, T, D});
    for (const int64_t rows : {1, 2, 1001}) {
      check_against_reference(LabelEmbed{7, D, rows}, {.tolerance = kExact});
      check_against_reference(LabelEmbedBackward{7, D, rows});
    }
  }
}

TEST(EmbedOps, TimeFeaturesAgreeWithTheReference) {
  for (const int64_t B : {1, 3, 17}) {
    check_against_reference(TimeEmbed{B, Objective::ddpm});
    check_against_reference(TimeEmbed{B, Objective::flow});
  }
}

TEST(EmbedOps, TimeFeaturesAreCosinesThenSines) {
  const Column f = outputs_of(TimeEmbed{1, Objective::ddpm}, {Column{3}})[0];
  EXPECT_DOUBLE_EQ(f[0], std::cos(3.0));
  EXPECT_DOUBLE_EQ(f[128], std::sin(3.0));
  EXPECT_NEAR(f[64], std::cos(3.0 / 100), 1e-15);
  EXPECT_EQ(outputs_of(TimeEmbed{1, Objective::flow}, {Column{0.003}})[0][128], f[128]);
}

TEST(EmbedOps, GradientsAreExact) {
  check_gradient(LabelEmbed{5, 3, 4}, {LabelEmbedBackward{5, 3, 4}});  // some row is taken twice
}

}  // namespace
}  // namespace ebb
