// What codes gradients for other ranks, and adds up what those have sent.
#include <algorithm>

#include "exchange_ops.h"

namespace ebb {
namespace {

const int64_t kCounts[] = {1, 7, 17, 255, 256, 257, 1000, 20'011};

// ---- all of them --------------------------------------------------------------------------------

TEST(ExchangeOps, OfVectorsAgreeWithTheReference) {
  for (const int64_t n : kCounts) {
    check_against_reference(EncodeBf16{n});
    check_against_reference(EncodeBf16Feedback{n});
    check_against_reference(EncodeInt8{n, 7}, {.tolerance = kExact});
    check_against_reference(AddInt8{n});
    check_against_reference(SignEncode{n});
    for (const int64_t groups : {2, 7}) check_against_reference(SignMomentum{n, 0.9, groups});
    check_against_reference(SignKeep{n}, {.tolerance = kExact});
    for (const float loss_scale : {1.0f, 1024.0f}) {
      const Check check{.scalars = with_loss_scale(loss_scale)};
      for (const bool unscaled : {false, true})
        check_against_reference(AddBf16{n, unscaled}, check);
      check_against_reference(SignAdd{n}, check);
      check_against_reference(AddTopK{n, (n + 9) / 10}, check);
    }
  }
}

TEST(ExchangeOps, OfChosenElementsAgreeWithTheReference) {
  for (const bool random : {false, true}) {
    for (const int64_t n : {1, 7, 17, 1000, 50'003}) {
      for (const int64_t k : {int64_t{1}, (n + 9) / 10, n}) {
        check_against_reference(EncodeTopK{n, k, random, 7}, {.tolerance = kExact});
      }
    }
  }
}

TEST(ExchangeOps, OfMatricesAgreeWithTheReference) {
  struct Sizes {
    int64_t N, K, R;
  };
  for (const auto& [N, K, R] : std::vector<Sizes>{{1, 1, 1},
                                                  {1, 40, 3},
                                                  {7, 16, 4},
                                                  {13, 65, 5},
                                                  {50, 200, 17},
                                                  {101, 48, 64},
                                                  {130, 333, 8},
                                                  {300, 70, 3},
                                                  {5, 1100, 33},
                                                  {3, 2100, 64}}) {
    check_against_reference(PowerProject{N, K, R});
    check_against_reference(PowerBack{N, K, R});
    check_against_reference(PowerSum{N, K, R}, {.scalars = with_loss_scale()});
    check_against_reference(PowerKeep{K, R}, {.tolerance = kExact});
  }
  for (const auto& [N, R] : {std::pair{1, 1}, {40, 5}, {101, 16}, {200, 64}}) {
    check_against_reference(Orthonormalize{N, R}, {.tolerance = 1e-5});
  }
}

// What the op would change is as it was, and no number that is sent can be used.
void expect_nothing_happens(const OpParams& op, int gate, double norm) {
  SCOPED_TRACE(describe(op));
  Random random(3);
  OpValues<double> in = make_inputs(op, random, 1);
  in.reads[gate] = {norm, std::isinf(norm) ? 0.0 : 1.0};
  if (gate > 0) in.reads[0].assign(in.reads[0].size(), norm);
  const OpValues<double> out = outcome(op, in);
  EXPECT_EQ(out.updates, in.updates);
  const Signature s = signature(op);
  for (size_t w = 0; w < s.writes.size(); ++w) {
    if (s.writes[w].type == DType::i32 || s.writes[w].type == DType::u8) continue;
    for (const double x : out.writes[w]) EXPECT_TRUE(std::isnan(x)) << s.writes[w].name;
  }
  if (const auto* few = std::get_if<EncodeTopK>(&op)) {
    EXPECT_TRUE(std::is_sorted(out.writes[0].begin(), out.writes[0].end()));
    EXPECT_GE(out.writes[0].front(), 0);
    EXPECT_LT(out.writes[0].back(), few->n);
    EXPECT_EQ(std::adjacent_find(out.writes[0].begin(), out.writes[0].end()), out.writes[0].end());
  }
  Check check{.tolerance = kExact};
  check.adjust = [&](OpValues<double>& v) { v.reads = in.reads; };
  check_against_reference(op, check);
}

TEST(ExchangeOps, ANormThatIsNotFiniteChangesNothingAndSendsNothingThatCanBeUsed) {
  for (const double norm : {double{INFINITY}, -double{INFINITY}, std::nan("")}) {
    expect_nothing_happens(EncodeBf16Feedback{1000}, 1, norm);
    expect_nothing_happens(EncodeTopK{1000, 37, false, 7}, 1, norm);
    expect_nothing_happens(EncodeTopK{1000, 37, true, 7}, 1, norm);
    expect_nothing_happens(PowerProject{30, 41, 3}, 1, norm);
    expect_nothing_happens(PowerBack{30, 41, 3}, 0, norm);
    expect_nothing_happens(SignEncode{1000}, 1, norm);
    expect_nothing_happens(SignMomentum{1000, 0.9, 2}, 1, norm);
    const Column m(100, 0.5);
    EXPECT_EQ(outcome(SignKeep{100}, operands(SignKeep{100}, {Column(13), {2}, {norm, 1}}, {m}))
                  .updates[0],
              m);
  }
}

TEST(ExchangeOps, WhatCannotBeUsedIsStillSoInTheSum) {
  constexpr int64_t N = 30, K = 41, R = 3;
  const Column nothing(N * R, std::nan(""));
  const Column p =
      outcome(Orthonormalize{N, R}, operands(Orthonormalize{N, R}, {}, {nothing})).updates[0];
  for (const double x : p) EXPECT_TRUE(std::isnan(x));
  const PowerSum op{N, K, R};
  const Column none(K * R, std::nan("")), warm(K * R, 0.5);
  const Column sum = outcome(op, operands(op, {p, none}, {})).writes[0];
  for (const double x : sum) EXPECT_TRUE(std::isnan(x));
  const PowerKeep keep{K, R};
  EXPECT_EQ(outcome(keep, operands(keep, {{INFINITY, 0}, none}, {warm})).updates[0], warm);
  const Column some(K * R, 1.0);
  EXPECT_EQ(outcome(keep, operands(keep, {{INFINITY, 0}, some}, {warm})).updates[0], warm);
  const AddTopK few{100, 3};
  const Column added =
      outcome(few, operands(few, {{5, 6, 99}, Column(3, std::nan(""))}, {Column(100)})).updates[0];
  EXPECT_TRUE(std::isnan(added[99]));
  const SignAdd signs{100};
  const Column all =
      outcome(signs, operands(signs, {Column(13), {std::nan("")}}, {Column(100)})).updates[0];
  for (const double x : all) EXPECT_TRUE(std::isnan(x));
}

TEST(ExchangeOps, TheGateIsOpenIfTheNormsOfAllRanksAreFinite) {
  const auto gate = [](float own, const Column& others) {
    const GateCodes op{std::ssize(others)};
    return outcome(op, operands(op, {{own, 0.25}, others}, {})).writes[0];
  };
  EXPECT_EQ(gate(3, {1, 2}), (Column{3, 0.25}));
  EXPECT_FALSE(std::isfinite(gate(INFINITY, {1, 2})[0]));
  EXPECT_FALSE(std::isfinite(gate(3, {1, INFINITY})[0]));
  EXPECT_FALSE(std::isfinite(gate(3, {std::nan(""), 2})[0]));
  check_against_reference(GateCodes{7}, {.tolerance = kExact});
}

// ---- bf16 ---------------------------------------------------------------------------------------

TEST(ExchangeBf16, NumbersThatAreNotFiniteStaySo) {
  const EncodeBf16 op{4};
  const Column code =
      outcome(op, operands(op, {{INFINITY, -INFINITY, std::nan(""), 3e38}}, {})).writes[0];
  EXPECT_EQ(code[0], INFINITY);
  EXPECT_EQ(code[1], -INFINITY);
  EXPECT_TRUE(std::isnan(code[2]));
  EXPECT_TRUE(std::isfinite(code[3]));
}

TEST(ExchangeBf16, WhatIsSentAndWhatIsLeftAreWhatWasThere) {
  constexpr int64_t n = 1000;
  const EncodeBf16Feedback op{n};
  Random random(5);
  const OpValues<double> in = make_inputs(op, random, 1);
  const OpValues<double> out = outcome(op, in);
  const Column x = gated(in.reads[0], in.updates[0]);
  for (int64_t i = 0; i < n; ++i) {
    const double rest = x[i] - out.writes[0][i];
    EXPECT_LE(std::abs(rest), 0x1p-8 * std::abs(x[i]));
    EXPECT_LE(std::abs(rest - out.updates[0][i]), 0x1p-8 * std::abs(rest)) << i;
  }
}

TEST(ExchangeBf16, WhatIsTooSmallToBeSentIsSentInTime) {
  constexpr int64_t kSteps = 256;
  constexpr double kTrue = 1 + 0x1p-11;  // bf16 has 1, and nothing nearer to it than 2^-8
  const EncodeBf16Feedback op{1};
  Column residual = {0};
  double sent = 0;
  for (int64_t k = 0; k < kSteps; ++k) {
    const OpValues<double> out = outcome(op, operands(op, {{kTrue}, {1, 1}}, {residual}));
    sent += out.writes[0][0];
    residual = out.updates[0];
  }
  EXPECT_NEAR(sent, kSteps * kTrue, 0x1p-7);
}

// ---- int8 ---------------------------------------------------------------------------------------

Column added_up(const OpValues<double>& out, int64_t n) {
  const AddInt8 op{n};
  return outcome(op, operands(op, out.writes, {Column(n)})).updates[0];
}

TEST(ExchangeInt8, IsNeverOffByMoreThanAStepAndRightInTheMean) {
  constexpr int64_t n = 300, kSteps = 400;
  const EncodeInt8 op{n, 9};
  Random random(5);
  const Column g = random_column(n, random);
  Column mean(n), scales;
  for (int64_t k = 0; k < kSteps; ++k) {
    const OpValues<double> out = outcome(op, operands(op, {g}, {}), at_step(k));
    scales = out.writes[1];
    const Column seen = added_up(out, n);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_LE(std::abs(seen[i] - g[i]), scales[i / kCodeBlock] * 1.00001) << i;
      mean[i] += seen[i] / kSteps;
    }
  }
  double off = 0;  // in steps: of one rounding 0.5 at most, so of so many 0.025 and 0.0015
  for (int64_t i = 0; i < n; ++i) {
    const double own = (mean[i] - g[i]) / scales[i / kCodeBlock];
    EXPECT_LE(std::abs(own), 5 * 0.025) << i;
    off += own / n;
  }
  EXPECT_LE(std::abs(off), 5 * 0.0015);
}

TEST(ExchangeInt8, TheLargestOfABlockIsAllButExactAndRoundingDependsOnStepAndTensor) {
  constexpr int64_t n = 600;
  Random random(5);
  const Column g = random_column(n, random);
  const auto encode = [&](uint32_t tensor, int64_t step) {
    const EncodeInt8 op{n, tensor};
    return outcome(op, operands(op, {g}, {}), at_step(step));
  };
  const OpValues<double> one = encode(1, 1);
  EXPECT_EQ(one.writes, encode(1, 1).writes);
  EXPECT_NE(one.writes, encode(1, 2).writes);
  EXPECT_NE(one.writes, encode(2, 1).writes);
  const Column seen = added_up(one, n);
  for (int64_t first = 0; first < n; first += kCodeBlock) {
    const auto largest =
        std::max_element(g.begin() + first, g.begin() + std::min(n, first + kCodeBlock),
                         [](double a, double b) { return std::abs(a) < std::abs(b); });
    EXPECT_NEAR(seen[largest - g.begin()], *largest, 1e-6 * std::abs(*largest));
  }
}

TEST(ExchangeInt8, ABlockOfZerosIsZerosAndOneThatIsNotFiniteSpoilsNoOther) {
  for (const double bad : {double{INFINITY}, -double{INFINITY}, std::nan("")}) {
    constexpr int64_t n = 5 * kCodeBlock;
    const EncodeInt8 op{n, 0};
    Random random(5);
    Column g = random_column(n, random);
    std::fill_n(g.begin() + kCodeBlock, kCodeBlock, 0.0);
    g[2 * kCodeBlock + 77] = bad;
    std::fill_n(g.begin() + 3 * kCodeBlock, kCodeBlock, 1e-39);
    const OpValues<double> out = outcome(op, operands(op, {g}, {}));
    EXPECT_EQ(out.writes[1][1], 0);
    EXPECT_EQ(out.writes[1][3], 0);
    const Column seen = added_up(out, n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t block = i / kCodeBlock;
      EXPECT_EQ(std::isnan(seen[i]), block == 2) << i;
      if (block == 1 || block == 3) {
        EXPECT_EQ(seen[i], 0);
      }
    }
  }
}

// ---- signs --------------------------------------------------------------------------------------

TEST(ExchangeSigns, SendTheMeanMagnitudeAndKeepAllElse) {
  constexpr int64_t n = 1003;
  const SignEncode op{n};
  const SignAdd add{n};
  Random random(5);
  OpValues<double> in = make_inputs(op, random, 1);
  in.reads[0][5] = in.updates[0][5] = 0;
  in.reads[0][6] = in.updates[0][6] = -0.0;
  const OpValues<double> out = outcome(op, in);
  const Column x = gated(in.reads[0], in.updates[0]);
  double mean = 0;
  for (const double each : x) mean += std::abs(each) / n;
  EXPECT_NEAR(out.writes[1][0], mean, 1e-6 * mean);
  EXPECT_EQ(static_cast<int>(out.writes[0].back()) >> (n % 8), 0);
  const Column sum =
      outcome(add, operands(add, out.writes, {Column(n)}), with_loss_scale(4)).updates[0];
  for (int64_t i = 0; i < n; ++i) {
    const double sent = x[i] >= 0 ? out.writes[1][0] : -out.writes[1][0];
    ASSERT_EQ(sum[i], 4 * sent) << i;
    EXPECT_NEAR(sent + out.updates[0][i], x[i], 1e-6) << i;
  }
}

// The parts of all groups are the momentum, and what they do not send of it they keep.
TEST(ExchangeSigns, OfAllGroupsAreTheMomentum) {
  constexpr int64_t n = 1003, kGroups = 3;
  const SignMomentum op{n, 0.9, kGroups};
  Random random(5);
  const Column m = random_column(n, random);
  Column wanted(n), found(n);
  for (int64_t group = 0; group < kGroups; ++group) {
    OpValues<double> in = make_inputs(op, random, 1);
    in.reads[2] = m;
    const OpValues<double> out = outcome(op, in);
    const Column sent =
        outcome(SignAdd{n}, operands(SignAdd{n}, out.writes, {Column(n)})).updates[0];
    for (int64_t i = 0; i < n; ++i) {
      wanted[i] += 0.9 / kGroups * m[i] + 0.1 * kOpenGate[1] * in.reads[0][i] + in.updates[0][i];
      found[i] += sent[i] + out.updates[0][i];
    }
  }
  for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(found[i], wanted[i], 1e-5) << i;
}

}  // namespace
}  // namespace ebb
