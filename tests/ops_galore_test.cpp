// AdamW in a small space: its op against its twin, and what its projector is.
#include <cmath>

#include "kernels/cpu/orthonormal.h"
#include "op_case.h"

namespace ebb {
namespace {

// At its fourth update no period begins, at its third one does.
constexpr double kWithin = 4, kBegins = 3;

GaloreAdamW small_space(int64_t rows, int64_t columns, int64_t rank, double decay = 0.1,
                        bool ema = true) {
  GaloreAdamW op{rows, columns, rank, {0, 0.9, 0.999, 1e-8, decay, ema}};
  op.adam.n = op.long_side() * rank;
  op.scale = 0.25;
  return op;
}

Scalars scalars_of(double update) {
  Scalars s = test_scalars();
  s.update = update;
  s.bias1 = static_cast<float>(1 - std::pow(0.9, update));
  s.bias2 = static_cast<float>(1 - std::pow(0.999, update));
  return s;
}

Column product(const Column& a, const Column& b, int64_t rows, int64_t depth, int64_t columns) {
  Column c(rows * columns);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t j = 0; j < columns; ++j) {
        c[i * columns + j] += a[i * depth + k] * b[k * columns + j];
      }
    }
  }
  return c;
}

Column transposed(const Column& a, int64_t rows, int64_t columns) {
  Column t(a.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) t[j * rows + i] = a[i * columns + j];
  }
  return t;
}

// How far rows are from unit length and right angles.
double off_orthonormal(const Column& q, int64_t count, int64_t n) {
  const Column gram = product(q, transposed(q, count, n), count, n, count);
  double worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < count; ++j) {
      worst = std::max(worst, std::abs(gram[i * count + j] - (i == j ? 1 : 0)));
    }
  }
  return worst;
}

// The share of a row that does not lie in the space of q's rows.
double outside(const Column& row, const Column& q, int64_t count) {
  const auto n = std::ssize(row);
  const Column shares = product(q, row, count, n, 1);
  double length = 0, inside = 0;
  for (const double x : row) length += x * x;
  for (const double x : shares) inside += x * x;
  return std::sqrt(std::max(0.0, 1 - inside / length));
}

TEST(GaloreOps, AgreeWithTheReference) {
  struct Case {
    int64_t rows, columns, rank;
  };
  for (const Case& c : {Case{2, 2, 1},
                        {40, 7, 3},
                        {7, 40, 3},
                        {33, 33, 8},
                        {150, 70, 17},
                        {70, 150, 17},
                        {9, 300, 8},
                        {300, 129, 40}}) {
    for (const double update : {1.0, kBegins, kWithin, 201.0}) {
      SCOPED_TRACE(update);
      // Orthonormal rows are known as well as the weakest of the directions is.
      Check check{.tolerance = 1e-4, .scalars = scalars_of(update)};
      check_against_reference(small_space(c.rows, c.columns, c.rank), check);
    }
    check_against_reference(small_space(c.rows, c.columns, c.rank, 0, false),
                            {.tolerance = 1e-5, .scalars = scalars_of(kWithin)});
  }
}

TEST(GaloreOps, TakeGradientsOf16Bits) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{60, 25}, {25, 60}}) {
    GaloreAdamW op = small_space(rows, columns, 7);
    op.adam.g = DType::bf16;
    for (const double update : {kBegins, kWithin}) {
      check_against_reference(op, {.tolerance = 1e-4, .scalars = scalars_of(update)});
    }
  }
}

TEST(GaloreOps, ANormThatIsNotFiniteChangesNothing) {
  Check check{.tolerance = kExact};
  check.adjust = [](OpValues<double>& v) { v.reads[1] = {INFINITY, 1.0}; };
  check_against_reference(small_space(20, 10, 3), check);
}

// A projector that leaves nothing away, of a step that is not made smaller.
TEST(GaloreOps, WithTheIdentityForAProjectorTheBitsAreThoseOfAdamW) {
  constexpr int64_t kRows = 100, kColumns = 23;
  struct Kind {
    bool narrow;
    Moments moments;
  };
  for (const Kind& kind :
       {Kind{false, Moments::f32}, {true, Moments::f32}, {true, Moments::coded}}) {
    GaloreAdamW op = small_space(kRows, kColumns, kColumns);
    op.scale = 1;
    op.adam.moments = kind.moments;
    op.adam.split = kind.narrow;
    if (kind.narrow) op.adam.g = op.adam.average = DType::bf16;
    Random random(9);
    OpValues<double> values = make_inputs(op.adam, random, 1);  // of as many elements
    const bool coded = kind.moments == Moments::coded;
    const size_t own = kind.narrow ? 2 : 1;
    for (const size_t moment : {own, own + 1}) {
      if (coded) values.updates[moment] = random_labels(op.n(), 256, random);
    }
    for (double& x : values.updates[own + (coded ? 2 : 1)]) x = std::abs(x);
    for (double& x : values.updates[own + (coded ? 3 : 1)]) x = std::abs(x);
    const auto want = run_on_device(op.adam, values, scalars_of(kWithin), std::byte{0}).updates;
    Column identity(kColumns * kColumns, 0.0);
    for (int64_t i = 0; i < kColumns; ++i) identity[i * (kColumns + 1)] = 1;
    const auto at = values.updates.begin() + static_cast<int64_t>(own);
    const auto projector = at - values.updates.begin();
    values.updates.insert(at, identity);
    auto got = run_on_device(op, values, scalars_of(kWithin), std::byte{0}).updates;
    EXPECT_EQ(got[projector], identity);
    got.erase(got.begin() + projector);
    EXPECT_TRUE(got == want) << (kind.narrow ? "narrow" : "whole");
  }
}

// As above, of a matrix that is wider than high: its moments stand the other way round.
TEST(GaloreOps, AWideMatrixIsAHighOneTurned) {
  constexpr int64_t kLong = 90, kShort = 31, kRank = 6;
  for (const double update : {kWithin, kBegins}) {
    Random random(10);
    OpValues<double> high = make_inputs(small_space(kLong, kShort, kRank), random, 1), wide = high;
    wide.reads[0] = transposed(high.reads[0], kLong, kShort);
    for (const int whole : {0, 4}) {
      wide.updates[whole] = transposed(high.updates[whole], kLong, kShort);
    }
    high = run_on_device(small_space(kLong, kShort, kRank), high, scalars_of(update), std::byte{0});
    wide = run_on_device(small_space(kShort, kLong, kRank), wide, scalars_of(update), std::byte{0});
    for (const int own : {1, 2, 3}) EXPECT_TRUE(wide.updates[own] == high.updates[own]) << own;
    for (const int whole : {0, 4}) {
      EXPECT_TRUE(wide.updates[whole] == transposed(high.updates[whole], kLong, kShort)) << whole;
    }
  }
}

// Pruning cuts moments and projector along with the matrix: until the next period begins, what is
// left moves as it does in a matrix with zeros in the place of the rest.
TEST(GaloreOps, WhatIsLeftOfAMatrixMovesAsBesideZeros) {
  constexpr int64_t kRows = 50, kColumns = 30, kRank = 6;
  const auto left = [](int64_t i) { return i % 5 != 1; };
  const auto cut = [&](const Column& all, int64_t columns, bool rows_too, bool columns_too) {
    Column some;
    for (int64_t i = 0; i < std::ssize(all); ++i) {
      if ((!rows_too || left(i / columns)) && (!columns_too || left(i % columns))) {
        some.push_back(all[i]);
      }
    }
    return some;
  };
  Random random(15);
  OpValues<double> whole = make_inputs(small_space(kRows, kColumns, kRank), random, 1);
  for (Column* matrix : {&whole.reads[0], &whole.updates[0], &whole.updates[4]}) {
    for (int64_t i = 0; i < std::ssize(*matrix); ++i) {
      if (!left(i / kColumns) || !left(i % kColumns)) (*matrix)[i] = 0;
    }
  }
  const auto cut_all = [&](const OpValues<double>& v) {
    OpValues<double> some = v;
    some.reads[0] = cut(v.reads[0], kColumns, true, true);
    for (const int of_matrix : {0, 4}) {
      some.updates[of_matrix] = cut(v.updates[of_matrix], kColumns, true, true);
    }
    some.updates[1] = cut(v.updates[1], kColumns, false, true);
    for (const int moment : {2, 3})
      some.updates[moment] = cut(v.updates[moment], kRank, true, false);
    return some;
  };
  const auto run = [](const GaloreAdamW& op, const OpValues<double>& v) {
    return run_on_device(op, v, scalars_of(kWithin), std::byte{0});
  };
  EXPECT_TRUE(cut_all(run(small_space(kRows, kColumns, kRank), whole)).updates ==
              run(small_space(40, 24, kRank), cut_all(whole)).updates);
}

// ---- the projector ------------------------------------------------------------------------------

// A gradient of so many directions, the last of them `weakest` times as strong as the first.
Column gradient_of(int64_t rows, int64_t columns, int64_t directions, double weakest) {
  Random random(12);
  Column left = random_column(rows * directions, random);
  const Column right = random_column(directions * columns, random);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < directions; ++k) {
      left[i * directions + k] *=
          std::pow(weakest, static_cast<double>(k) / static_cast<double>(directions));
    }
  }
  Column g = product(left, right, rows, directions, columns);
  for (double& x : g) x = static_cast<float>(1e-5 * x);
  return g;
}

// What an update leaves of the optimizer's own, where a period begins.
OpValues<double> begun(const GaloreAdamW& op, const Column& g, double update, const Column& q) {
  Random random(13);
  OpValues<double> values = make_inputs(op, random, 1);
  values.reads[0] = g;
  values.updates[1] = q;
  return run_on_device(op, values, scalars_of(update), std::byte{0xff});
}

// Once is not enough: what is left of the second row is small, and rounding is a large part of it.
TEST(GaloreProjector, RowsThatAreNearlyTheSameComeToStandAtRightAngles) {
  constexpr int64_t kCount = 20, kLength = 50;
  Random random(14);
  const Column base = random_column(kLength, random);
  std::vector<float> rows;
  for (int64_t i = 0; i < kCount; ++i) {
    for (const double x : random_column(kLength, random, 1e-3)) {
      rows.push_back(static_cast<float>(base[rows.size() % kLength] + x));
    }
  }
  std::vector<double> scratch(kCount);
  cpu::make_orthonormal(rows.data(), kCount, kLength, scratch.data(),
                        [](float*) { ADD_FAILURE() << "something is left of every row"; });
  EXPECT_LT(off_orthonormal(Column(rows.begin(), rows.end()), kCount, kLength), 1e-6);
}

TEST(GaloreProjector, HasTheDirectionsOfTheGradient) {
  constexpr int64_t kRows = 200, kColumns = 64, kRank = 12;
  const GaloreAdamW op = small_space(kRows, kColumns, kRank);
  const Column none(kRank * kColumns, 0.0);
  for (const int64_t directions : {3, 12}) {
    const Column g = gradient_of(kRows, kColumns, directions, 0.03);
    const Column q = begun(op, g, 1, none).updates[1];
    EXPECT_LT(off_orthonormal(q, kRank, kColumns), 1e-6);
    double worst = 0;
    for (int64_t i = 0; i < kRows; ++i) {
      const Column row(g.begin() + i * kColumns, g.begin() + (i + 1) * kColumns);
      worst = std::max(worst, outside(row, q, kRank));
    }
    EXPECT_LT(worst, 2e-3) << directions;
  }
}

// Where the gradient has fewer directions, rows of the projector before stay, in their order.
TEST(GaloreProjector, KeepsWhatTheGradientLeavesRoomFor) {
  constexpr int64_t kRows = 90, kColumns = 40, kRank = 10;
  const GaloreAdamW op = small_space(kRows, kColumns, kRank);
  const Column none(kRank * kColumns, 0.0), zero(kRows * kColumns, 0.0);
  const Column before = begun(op, zero, 1, none).updates[1];
  EXPECT_LT(off_orthonormal(before, kRank, kColumns), 1e-6);  // random ones
  const Column after = begun(op, gradient_of(kRows, kColumns, 4, 0.5), kBegins, before).updates[1];
  EXPECT_LT(off_orthonormal(after, kRank, kColumns), 1e-6);
  for (int64_t j = 0; j < kRank; ++j) {
    const Column row(before.begin() + j * kColumns, before.begin() + (j + 1) * kColumns);
    EXPECT_EQ(outside(row, after, kRank) < 1e-3, j < kRank - 4) << j;
  }
}

// Numbers whose squares fp32 cannot hold leave a projector that is one all the same.
TEST(GaloreProjector, StandsHugeAndTinyGradients) {
  const GaloreAdamW op = small_space(30, 20, 5);
  const Column none(5 * 20, 0.0);
  for (const double scale : {1e30, 1e-30}) {
    Column g = gradient_of(30, 20, 5, 0.5);
    for (double& x : g) x = static_cast<float>(x * scale);
    EXPECT_LT(off_orthonormal(begun(op, g, 1, none).updates[1], 5, 20), 1e-6) << scale;
  }
}

// In a space of all directions the mean gradient is what it was, seen from another side.
TEST(GaloreProjector, ANewOneTurnsTheMomentsWithIt) {
  constexpr int64_t kRows = 60, kColumns = 12;
  const GaloreAdamW op = small_space(kRows, kColumns, kColumns);
  const Column g = gradient_of(kRows, kColumns, kColumns, 0.5);
  const Column before = begun(op, g, 1, Column(kColumns * kColumns, 0.0)).updates[1];
  Random random(13);
  const OpValues<double> start = make_inputs(op, random, 1);  // as begun() has it
  OpValues<double> after = begun(op, g, kBegins, before);
  Column want = product(start.updates[2], before, kRows, kColumns, kColumns);
  for (size_t i = 0; i < want.size(); ++i) want[i] = 0.9 * want[i] + 0.1 * 0.625 * g[i];
  expect_close("m q", product(after.updates[2], after.updates[1], kRows, kColumns, kColumns), want,
               1e-5);
  for (size_t i = 0; i < after.updates[2].size(); ++i) {
    const double m = after.updates[2][i], v = after.updates[3][i];
    ASSERT_GE(v, 0.0);
    ASSERT_LE(std::abs(m), 2 * std::sqrt(v / 0.0011) + 1e-6);  // no step is a leap
  }
}

TEST(GaloreProjector, TheFirstPeriodsAreShort) {
  const GaloreAdamW op = small_space(4, 4, 2);
  std::vector<int> begin;
  for (int update = 1; update <= 601; ++update) {
    if (op.begins_period(update)) begin.push_back(update);
  }
  EXPECT_EQ(begin, (std::vector<int>{1, 2, 3, 5, 9, 17, 33, 65, 129, 201, 401, 601}));
}

}  // namespace
}  // namespace ebb
