#include "cli/status_line.h"

#include <gtest/gtest.h>

namespace ebb {
namespace {

TEST(StatusLine, FieldsAreLeftOutByRankUntilTheRestFits) {
  const std::vector<StatusField> fields = {{"step 1/9", 1}, {"norm 2", 3}, {"1s left", 2}};
  EXPECT_EQ(fit_fields(fields, 80), "step 1/9  norm 2  1s left");
  EXPECT_EQ(fit_fields(fields, 25), "step 1/9  norm 2  1s left");
  EXPECT_EQ(fit_fields(fields, 24), "step 1/9  1s left");
  EXPECT_EQ(fit_fields(fields, 16), "step 1/9");
  EXPECT_EQ(fit_fields(fields, 4), "step");
  EXPECT_EQ(fit_fields(fields, 0), "");
}

TEST(StatusLine, TheFirstPlainLineIsDueAtOnceAndTheNextIsNot) {
  Cadence cadence;
  EXPECT_TRUE(cadence.due());
  EXPECT_FALSE(cadence.due());
}

TEST(StatusLine, WordsOfACommandAreQuotedWhereAShellWouldSplitThem) {
  EXPECT_EQ(shell_word("runs/a-1.png"), "runs/a-1.png");
  EXPECT_EQ(shell_word("my runs/$a"), "'my runs/$a'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

}  // namespace
}  // namespace ebb
