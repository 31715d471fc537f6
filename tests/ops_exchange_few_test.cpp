// The few elements of a gradient that are sent: the largest, or some at random.
#include <algorithm>
#include <numeric>

#include "exchange_ops.h"

namespace ebb {
namespace {

// Exactly the k largest, of equal ones the first, and what is left is all the rest.
void expect_largest(const Column& g, const Column& residual, int64_t k) {
  const auto n = static_cast<int64_t>(g.size());
  SCOPED_TRACE(testing::Message() << k << " of " << n);
  const EncodeTopK op{n, k, false, 0};
  const OpValues<double> out = outcome(op, operands(op, {g, kOpenGate}, {residual}));
  const Column x = gated(g, residual);
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  std::sort(order.begin(), order.begin() + k);
  Column rest = x;
  for (int64_t i = 0; i < k; ++i) {
    ASSERT_EQ(out.writes[0][i], static_cast<double>(order[i]));
    ASSERT_EQ(out.writes[1][i], x[order[i]]);
    rest[order[i]] = 0;
  }
  EXPECT_EQ(out.updates[0], rest);
}

TEST(ExchangeTopK, SendsTheLargestAndKeepsAllElse) {
  Random random(5);
  for (const int64_t n : {1, 2, 100, 16'384, 60'001}) {
    const Column g = random_column(n, random), residual = random_column(n, random, 0.1);
    for (const int64_t k : {int64_t{1}, (n + 99) / 100, n / 2, n}) {
      if (k > 0) expect_largest(g, residual, k);
    }
  }
}

TEST(ExchangeTopK, OfEqualOnesSendsTheFirst) {
  Random random(5);
  for (const int64_t n : {100, 60'001}) {
    const Column none(n);
    Column few(n);  // magnitudes, of either sign
    for (double& x : few) x = static_cast<double>(random() % 5) - 2;
    Column nearly(n);  // those that only their last bits tell apart
    for (double& x : nearly)
      x = static_cast<float>(1 + 0x1p-22 * static_cast<double>(random() % 4));
    const Column negative(n, -3.0), smallest(n, 1e-44);
    for (const Column& g : {few, nearly, negative, smallest, none}) {
      for (const int64_t k : {int64_t{1}, n / 3, n - 1, n}) expect_largest(g, none, k);
    }
  }
}

TEST(ExchangeTopK, ManyStepsSendAllThatTheyWereGiven) {
  constexpr int64_t n = 500, k = 20, kSteps = 100;
  const EncodeTopK op{n, k, false, 0};
  const AddTopK add{n, k};
  Random random(5);
  Column residual(n), sum(n), given_in_all(n);
  for (int64_t step = 0; step < kSteps; ++step) {
    Column g = random_column(n, random);
    for (int64_t i = 0; i < n; ++i) given_in_all[i] += kOpenGate[1] * 64 * (g[i] += 0.1);
    const OpValues<double> out = outcome(op, operands(op, {g, kOpenGate}, {residual}));
    residual = out.updates[0];
    sum = outcome(add, operands(add, out.writes, {sum}), with_loss_scale(64)).updates[0];
  }
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_NEAR(sum[i] + 64 * residual[i], given_in_all[i], 2e-2) << i;
  }
}

TEST(ExchangeRandom, ChoosesTheSameOnEveryRankOneOfEachPart) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1000, 37}, {2000, 700}, {9, 9}}) {
    const EncodeTopK op{n, k, true, 4};
    Random random(5);
    const OpValues<double> one = make_inputs(op, random, 1), other = make_inputs(op, random, 1);
    const OpValues<double> out = outcome(op, one);
    EXPECT_EQ(outcome(op, other).writes[0], out.writes[0]);
    Column rest = gated(one.reads[0], one.updates[0]);
    for (int64_t i = 0; i < k; ++i) {
      const auto at = static_cast<int64_t>(out.writes[0][i]);
      EXPECT_GE(at, n * i / k);
      EXPECT_LT(at, n * (i + 1) / k);
      EXPECT_EQ(out.writes[1][i], rest[at]);
      rest[at] = 0;
    }
    EXPECT_EQ(out.updates[0], rest);
    if (n == k) continue;
    EXPECT_NE(outcome(op, one, at_step(1)).writes[0], out.writes[0]);
    EXPECT_NE(outcome(EncodeTopK{n, k, true, 5}, one).writes[0], out.writes[0]);
  }
}

TEST(ExchangeRandom, EveryElementHasItsTurn) {
  constexpr int64_t n = 10, k = 2, kSteps = 500;
  const EncodeTopK op{n, k, true, 4};
  std::vector<int> often(n);
  for (int64_t step = 0; step < kSteps; ++step) {
    const Column chosen =
        outcome(op, operands(op, {Column(n, 1.0), kOpenGate}, {Column(n)}), at_step(step))
            .writes[0];
    for (const double i : chosen) ++often[static_cast<size_t>(i)];
  }
  for (const int times : often) EXPECT_NEAR(times, 100, 45);  // five deviations
}

}  // namespace
}  // namespace ebb
