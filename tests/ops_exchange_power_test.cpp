// Gradients that are sent as products of two narrow matrices.
#include <numeric>

#include "base/error.h"
#include "exchange_ops.h"

namespace ebb {
namespace {

// a (N, K) b (K, M)
Column product(const Column& a, const Column& b, int64_t N, int64_t K, int64_t M) {
  Column c(N * M);
  for (int64_t i = 0; i < N; ++i) {
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t j = 0; j < M; ++j) c[i * M + j] += a[i * K + k] * b[k * M + j];
    }
  }
  return c;
}

Column transposed(const Column& a, int64_t rows) {
  const auto columns = static_cast<int64_t>(a.size()) / rows;
  Column t(a.size());
  for (size_t i = 0; i < a.size(); ++i) t[i % columns * rows + i / columns] = a[i];
  return t;
}

double size_of(const Column& a) {
  return std::sqrt(std::inner_product(a.begin(), a.end(), a.begin(), 0.0));
}

Column orthonormal(const Column& p, int64_t N) {
  const Orthonormalize op{N, static_cast<int64_t>(p.size()) / N};
  return outcome(op, operands(op, {}, {p})).updates[0];
}

// Every two columns; those that are zeros have a length of 0.
void expect_orthonormal(const Column& p, int64_t N, const std::vector<int>& lengths) {
  const auto R = static_cast<int64_t>(lengths.size());
  const Column t = transposed(p, N), products = product(t, p, R, N, R);
  for (int64_t i = 0; i < R; ++i) {
    for (int64_t j = 0; j < R; ++j) {
      EXPECT_NEAR(products[i * R + j], i == j ? lengths[i] : 0, 1e-5) << i << ", " << j;
    }
  }
}

// One step of one rank: what is sent, in all, and what is left.
struct Powered {
  Column p, q, residual, sum, warm;
  Powered(const Column& x, const Column& before, int64_t N, int64_t K, float loss_scale = 1) {
    const auto R = static_cast<int64_t>(before.size()) / K;
    const Column open = {1, 1};
    const PowerProject project{N, K, R};
    const PowerBack back{N, K, R};
    const PowerSum add{N, K, R};
    const OpValues<double> first =
        outcome(project, operands(project, {x, open, before}, {Column(N * K)}));
    p = orthonormal(first.writes[0], N);
    const OpValues<double> second = outcome(back, operands(back, {open, p}, first.updates));
    q = second.writes[0];
    residual = second.updates[0];
    sum = outcome(add, operands(add, {p, q}, {}), with_loss_scale(loss_scale)).writes[0];
    const PowerKeep keep{K, R};
    warm = outcome(keep, operands(keep, {open, q}, {before})).updates[0];
  }
};

TEST(ExchangePower, WhatIsSentAndWhatIsLeftAreTheMatrix) {
  constexpr int64_t N = 60, K = 83;
  Random random(5);
  const Column x = random_column(N * K, random);
  for (const int64_t R : {1, 4, 33}) {
    const Powered step(x, random_column(K * R, random), N, K, 64);
    expect_orthonormal(step.p, N, std::vector<int>(R, 1));
    Column off = x;
    for (size_t i = 0; i < x.size(); ++i) off[i] -= step.sum[i] / 64 + step.residual[i];
    EXPECT_LE(size_of(off), 1e-6 * size_of(x));
    EXPECT_LT(size_of(step.residual), size_of(x) * (1 - 0.5 * static_cast<double>(R) / N));
    EXPECT_EQ(step.warm, step.q);
  }
}

TEST(ExchangePower, OfAMatrixOfNoMoreColumnsNothingIsLeft) {
  constexpr int64_t N = 60, K = 83;
  Random random(5);
  for (const int64_t rank : {1, 3, 5}) {
    Column x =
        product(random_column(N * rank, random), random_column(rank * K, random), N, rank, K);
    for (double& each : x) each = static_cast<float>(each);
    for (const int64_t R : {rank, rank + 4}) {
      const Powered step(x, random_column(K * R, random), N, K);
      EXPECT_LE(size_of(step.residual), 1e-5 * size_of(x)) << rank << " of " << R;
    }
  }
}

TEST(ExchangePower, StepsAfterEachOtherFindTheLargestPart) {
  constexpr int64_t N = 40, K = 50, R = 2;
  Random random(5);
  Column x = product(random_column(N * R, random), random_column(R * K, random), N, R, K);
  const Column rest = random_column(N * K, random, 0.1);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(x[i] + rest[i]);
  Column warm = random_column(K * R, random);
  for (int step = 0; step < 4; ++step) warm = Powered(x, warm, N, K).warm;
  EXPECT_LE(size_of(Powered(x, warm, N, K).residual), size_of(rest));
}

TEST(ExchangePower, ColumnsWithinThoseBeforeThemBecomeZeros) {
  constexpr int64_t N = 200;
  Random random(5);
  const Column a = random_column(N, random), b = random_column(N, random);
  Column p;
  for (int64_t i = 0; i < N; ++i) {
    const double noise = static_cast<double>(random() % 1000) * 1e-7;
    for (const double x :
         {0.0, a[i], -2 * a[i], a[i] + noise, b[i], 1e-20 * b[i], a[i] + 3 * b[i]}) {
      p.push_back(static_cast<float>(x));
    }
  }
  expect_orthonormal(orthonormal(p, N), N, {0, 1, 0, 1, 1, 0, 0});
}

// The inverse of its length would be infinite.
TEST(ExchangePower, AColumnTooShortToBeMadeLongerBecomesZeros) {
  EXPECT_EQ(orthonormal({1e-41, 0, -2e-41}, 3), Column(3));
}

TEST(ExchangePower, AColumnThatIsNotFiniteIsSoInAllRowsAndSpoilsThoseBehindIt) {
  for (const double bad : {double{INFINITY}, std::nan("")}) {
    for (const int column : {0, 1}) {
      Column p = {1, 2, 3, -1, 1, 4, 1, 0, 2};
      p[column] = bad;
      p = orthonormal(p, 3);
      for (int i = 0; i < 9; ++i) EXPECT_EQ(std::isnan(p[i]), i % 3 >= column) << i;
    }
  }
}

TEST(ExchangePower, MoreColumnsThanRowsAreNoMoreThanRows) {
  Random random(5);
  expect_orthonormal(orthonormal(random_column(3 * 5, random), 3), 3, {1, 1, 1, 0, 0});
}

TEST(ExchangePower, AMatrixOfZerosIsZerosAndTheNextStepBeginsAnew) {
  constexpr int64_t N = 20, K = 30, R = 3;
  Random random(5);
  const Column before = random_column(K * R, random);
  const Powered step(Column(N * K), before, N, K);
  EXPECT_EQ(step.sum, Column(N * K));
  EXPECT_EQ(step.residual, Column(N * K));
  EXPECT_EQ(step.warm, before);
}

TEST(ExchangePower, ColumnsThatAreNoUseLeaveTheNextStepsAsTheyAre) {
  constexpr int64_t K = 30, R = 3;
  const PowerKeep op{K, R};
  Random random(5);
  OpValues<double> in = make_inputs(op, random, 1);
  for (int64_t k = 0; k < K; ++k) in.reads[1][k * R] = 0;
  in.reads[1][7 * R + 1] = INFINITY;
  const Column warm = outcome(op, in).updates[0];
  for (int64_t k = 0; k < K * R; ++k) {
    EXPECT_EQ(warm[k], k % R == 2 ? in.reads[1][k] : in.updates[0][k]);
  }
}

// What other ranks sent can overflow though every rank's own norm is finite.
TEST(ExchangePower, ProductsThatAreNotFiniteLeaveTheResidual) {
  const PowerBack op{4, 30, 2};
  Random random(5);
  OpValues<double> in = make_inputs(op, random, 1);
  for (size_t i = 1; i < in.reads[1].size(); i += 2) in.reads[1][i] = std::nan("");
  const OpValues<double> out = outcome(op, in);
  EXPECT_EQ(out.updates, in.updates);
  for (const double x : out.writes[0]) EXPECT_TRUE(std::isnan(x));
}

TEST(ExchangePower, MoreColumnsThanThereCanBeAreABug) {
  const PowerProject op{2, 3, kMostColumns + 1};
  Random random(5);
  EXPECT_THROW(outcome(op, make_inputs(op, random, 1)), Bug);
}

}  // namespace
}  // namespace ebb
