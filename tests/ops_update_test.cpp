// The gradient's norm, clipping and AdamW with EMA.
#include "kernels/moment_code.h"
#include "op_case.h"

namespace ebb {
namespace {

constexpr double kDoubleSum = 1e-12;  // the norms are f64

const int64_t kCounts[] = {1, 7, 17, 1000, 100003};

TEST(UpdateOps, AgreeWithTheReference) {
  for (const int64_t n : kCounts) {
    for (const int64_t slot : {0, 4})
      check_against_reference(SquaredNorm{n, slot}, {.tolerance = kDoubleSum});
    for (const bool ema : {false, true}) {
      for (const float decay : {0.0f, 0.1f}) {
        check_against_reference(AdamW{n, 0.9f, 0.999f, 1e-8f, decay, ema});
      }
    }
  }
  for (const int64_t n : kCounts) {
    AdamW frozen{n, 0.9, 0.999, 1e-8, 0.1, true};
    frozen.frozen = true;
    Check scaled;
    scaled.scalars.loss_scale = 1024;
    scaled.scalars.frozen_bias2 = 0.25f;
    check_against_reference(frozen, scaled);
  }
  for (const int64_t count : {1, 7, 130}) {
    for (const float limit : {0.0f, 0.5f, 1000.0f}) {
      check_against_reference(ClipScale{0, count, limit});
      Check scaled;
      scaled.scalars.loss_scale = 1024;
      check_against_reference(ClipScale{0, count, limit}, scaled);
    }
  }
}

TEST(UpdateOps, ANormThatIsNotFiniteChangesNothing) {
  for (const double norm : {double{INFINITY}, -double{INFINITY}, std::nan("")}) {
    for (const bool ema : {false, true}) {
      Check check{.tolerance = kExact};
      check.adjust = [norm](OpValues<double>& v) { v.reads[1] = {norm, 1.0}; };
      check_against_reference(AdamW{100, 0.9f, 0.999f, 1e-8f, 0.1f, ema}, check);
    }
  }
}

// Gradients that are not finite come with a norm that is not: whatever they hold, it is not used.
TEST(UpdateOps, GradientsThatAreNotFiniteChangeNothing) {
  Check check{.tolerance = kExact};
  check.adjust = [](OpValues<double>& v) {
    v.reads[0].assign(v.reads[0].size(), INFINITY);
    v.reads[1] = {INFINITY, 0.0};
  };
  check_against_reference(AdamW{100, 0.9f, 0.999f, 1e-8f, 0.1f, true}, check);
}

TEST(UpdateOps, AGradientThatIsNotFiniteHasNoFiniteNorm) {
  for (const float bad : {INFINITY, NAN}) {
    const SquaredNorm square{100, 0};
    OpValues<double> v{{Column(100, 1.0)}, {Column(1)}, {}};
    v.reads[0][57] = bad;
    v.writes = run_on_device(square, v, test_scalars(), std::byte{0}).writes;
    EXPECT_FALSE(std::isfinite(v.writes[0][0]));
    const OpValues<double> clip{{v.writes[0]}, {Column(2)}, {}};
    EXPECT_FALSE(std::isfinite(
        run_on_device(ClipScale{0, 1, 1.0f}, clip, test_scalars(), std::byte{0}).writes[0][0]));
  }
}

// Squares past the range of fp32 still have a norm: the sum is in double.
TEST(UpdateOps, HugeAndTinyGradientsHaveANorm) {
  for (const double size : {1e25, 1e-25}) {
    check_against_reference(SquaredNorm{1000, 0}, {.tolerance = kDoubleSum, .scale = size});
  }
}

TEST(UpdateOps, ClippingIsThatOfTorch) {
  const Column norms = {9.0, 16.0};
  const auto factor = [&](float limit) {
    return outputs_of(ClipScale{0, 2, limit}, {norms})[0][1];
  };
  EXPECT_EQ(outputs_of(ClipScale{0, 2, 1}, {norms})[0][0], 5);
  EXPECT_EQ(factor(0), 1);
  EXPECT_EQ(factor(6), 1);
  EXPECT_DOUBLE_EQ(factor(2), 2 / (5 + 1e-6));
}

// ---- state in fewer bits ------------------------------------------------------------------------

// Numbers as a run has them: w, m, v (positive) and the average, for n elements.
struct Trained {
  Column g, w, m, v, ema;
  explicit Trained(int64_t n) {
    Random random(3);
    g = random_column(n, random, 1e-2);
    w = random_column(n, random);
    m = random_column(n, random, 1e-2);
    v = random_column(n, random, 1e-2);
    for (double& second : v) second = static_cast<float>(second * second);
    ema = w;
  }
};

OpValues<double> updated(const AdamW& op, const Column& g, std::vector<Column> state) {
  return run_on_device(op, {{g, {1.75, 0.625}}, {}, std::move(state)}, test_scalars(),
                       std::byte{0});
}

const int64_t kStateCounts[] = {1, 255, 256, 257, 5000};

// The two halves of a weight lose nothing: updating them is updating it.
TEST(UpdateOps, ASplitWeightIsUpdatedBitForBitAsAWholeOne) {
  for (const int64_t n : kStateCounts) {
    const Trained t(n);
    AdamW op{n, 0.9, 0.999, 1e-8, 0.1, true};
    const auto whole = updated(op, t.g, {t.w, t.m, t.v, t.ema}).updates;
    Column high(n), low(n);
    for (int64_t i = 0; i < n; ++i) {
      const SplitFloat parts = SplitFloat::of(static_cast<float>(t.w[i]));
      high[i] = static_cast<double>(parts.high);
      low[i] = parts.low;
    }
    op.split = true;
    const auto split = updated(op, t.g, {high, low, t.m, t.v, t.ema}).updates;
    for (int64_t i = 0; i < n; ++i) {
      const SplitFloat parts{Bf16::nearest(static_cast<float>(split[0][i])),
                             static_cast<int16_t>(split[1][i])};
      ASSERT_EQ(parts.whole(), whole[0][i]) << i << " of " << n;
    }
    EXPECT_EQ(split[2], whole[1]);
    EXPECT_EQ(split[3], whole[2]);
    EXPECT_EQ(split[4], whole[3]);
  }
}

// From coded moments the weight moves as it would from their values; the new moments are coded up
// or down at random, never further than the next value.
TEST(UpdateOps, CodedMomentsMoveTheWeightAsTheirValuesDo) {
  for (const int64_t n : kStateCounts) {
    const Trained t(n);
    AdamW op{n, 0.9, 0.999, 1e-8, 0.1, false};
    op.moments = Moments::coded;
    Column m_codes(n), v_codes(n), m_scales(op.blocks()), v_scales(op.blocks()), m(n), v(n);
    for (int64_t first = 0; first < n; first += kMomentBlock) {
      const int64_t count = std::min(kMomentBlock, n - first), block = first / kMomentBlock;
      float values[kMomentBlock], roots[kMomentBlock], scales[2];
      uint8_t codes[2][kMomentBlock];
      for (int64_t i = 0; i < count; ++i) {
        values[i] = static_cast<float>(t.m[first + i]);
        roots[i] = std::sqrt(static_cast<float>(t.v[first + i]));
      }
      const auto nearest = [](int64_t) { return 0.5f; };
      encode_first({codes[0], &scales[0]}, values, count, nearest);
      encode_second({codes[1], &scales[1]}, roots, count, nearest);
      m_scales[block] = scales[0];
      v_scales[block] = scales[1];
      decode_first(values, {codes[0], &scales[0]}, count);
      decode_second(roots, {codes[1], &scales[1]}, count);
      for (int64_t i = 0; i < count; ++i) {
        m_codes[first + i] = codes[0][i];
        v_codes[first + i] = codes[1][i];
        m[first + i] = values[i];
        v[first + i] = roots[i];
      }
    }
    const auto coded = updated(op, t.g, {t.w, m_codes, v_codes, m_scales, v_scales}).updates;
    op.moments = Moments::f32;
    const auto plain = updated(op, t.g, {t.w, m, v}).updates;
    EXPECT_EQ(coded[0], plain[0]);
    for (int64_t i = 0; i < n; ++i) {
      const double scale = coded[3][i / kMomentBlock];
      const auto value = [&](int code) {
        return scale * MomentCode::with_sign().value(static_cast<uint8_t>(code));
      };
      const int code = static_cast<int>(coded[1][i]);
      ASSERT_GE(plain[1][i], value(std::max(code - 1, 1)) - 1e-6 * scale);
      ASSERT_LE(plain[1][i], value(std::min(code + 1, 255)) + 1e-6 * scale);
    }
  }
}

// Up or down, but right on average: and the same bits for the same key.
TEST(UpdateOps, AnAverageOf16BitsIsRoundedWithoutBias) {
  const int64_t n = 100000;
  AdamW op{n, 0.9, 0.999, 1e-8, 0, true};
  op.average = DType::bf16;
  Scalars s = test_scalars();
  s.lr = 0;
  s.ema_decay = 0.5;
  const double between = 1 + 0.3 / 128;  // bf16 has 1 and 1 + 1/128
  const OpValues<double> inputs{{Column(n, 1.0), {1, 1}},
                                {},
                                {Column(n, 2 * between - 1), Column(n), Column(n), Column(n, 1.0)}};
  const auto once = run_on_device(op, inputs, s, std::byte{0}).updates[3];
  EXPECT_EQ(once, run_on_device(op, inputs, s, std::byte{0}).updates[3]);
  double mean = 0;
  for (const double x : once) {
    ASSERT_TRUE(x == 1 || x == 1 + 1.0 / 128) << x;
    mean += x / n;
  }
  EXPECT_NEAR(mean, between, 5 * std::sqrt(0.3 * 0.7 / n) / 128);
  s.step += 1;
  EXPECT_NE(once, run_on_device(op, inputs, s, std::byte{0}).updates[3]);
  s.ema_decay = 1;  // not its turn
  EXPECT_EQ(run_on_device(op, inputs, s, std::byte{0}).updates[3], inputs.updates[3]);
}

// From rest, the first step goes against the sign of the gradient by the learning rate.
TEST(UpdateOps, TheFirstAdamWStepHasTheSizeOfTheRate) {
  Scalars s;
  s.lr = 0.125f;
  s.bias1 = 0.5f;
  s.bias2 = 0.25f;
  s.ema_decay = 0.75f;
  OpValues<double> v{{{3.0, -0.01}, {1, 1}}, {}, {{2, 2}, {0, 0}, {0, 0}, {2, 2}}};
  run_reference(AdamW{2, 0.5f, 0.75f, 0, 0.5f, true}, v.refs(s));
  const double decayed = 2 * (1 - 0.125 * 0.5);
  EXPECT_NEAR(v.updates[0][0], decayed - 0.125, 1e-12);
  EXPECT_NEAR(v.updates[0][1], decayed + 0.125, 1e-12);
  EXPECT_NEAR(v.updates[1][0], 1.5, 1e-12);
  EXPECT_NEAR(v.updates[2][0], 2.25, 1e-12);
  EXPECT_NEAR(v.updates[3][0], 0.75 * 2 + 0.25 * (decayed - 0.125), 1e-12);
}

}  // namespace
}  // namespace ebb
