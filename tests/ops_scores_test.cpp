// What scores from data are made of.
#include "op_case.h"

namespace ebb {
namespace {

TEST(ScoreOps, AgreeWithTheReference) {
  for (const int64_t B : {1, 3}) {
    for (const int64_t T : {1, 16, 70}) {
      for (const int64_t N : {1, 8, 63, 64, 65, 300}) {
        check_against_reference(ColumnSums{B, T, N}, {.tolerance = 1e-12});
      }
    }
  }
}

TEST(ScoreOps, SumsGoOnFromSampleToSampleWhateverTheMicroBatches) {
  constexpr int64_t kSamples = 6, kTokens = 5, kColumns = 33;
  Random random(7);
  const Column x = random_column(kSamples * kTokens * kColumns, random);
  const auto added = [&](Column sums, int64_t first, int64_t count) {
    const auto begin = x.begin() + first * kTokens * kColumns;
    const Column part(begin, begin + count * kTokens * kColumns);
    return run_on_device(ColumnSums{count, kTokens, kColumns}, {{part}, {}, {std::move(sums)}},
                         test_scalars(), std::byte{0})
        .updates[0];
  };
  const Column none(3 * kColumns);
  const Column at_once = added(none, 0, kSamples);
  EXPECT_EQ(added(added(none, 0, 4), 4, 2), at_once);
  EXPECT_EQ(added(added(added(none, 0, 1), 1, 3), 4, 2), at_once);
}

}  // namespace
}  // namespace ebb
