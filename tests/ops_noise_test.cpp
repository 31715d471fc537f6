// Noise, times and dropped labels: the same random numbers from every implementation.
#include "op_case.h"

namespace ebb {
namespace {

// Of seed 0: the first random word of the first sample is 0xffffff17 and 0x00000171.
constexpr int64_t kStepOfLargestTime = 88524, kStepOfSmallestTime = 281641;

const int64_t kCounts[] = {1, 7, 17, 1000};

TEST(NoiseOps, AgreeWithTheReference) {
  for (const int64_t n : kCounts) {
    check_against_reference(FillNormal{3, n, Stream::noise});
    check_against_reference(FillNormal{1, n, Stream::sampler_noise, 5});
  }
  check_against_reference(FillNormal{9, 4096, Stream::noise});
  for (const int64_t B : {1, 7, 130}) {
    check_against_reference(DrawTimes{B, Objective::ddpm, TimeSampling::uniform},
                            {.tolerance = kExact});
    check_against_reference(DrawTimes{B, Objective::flow, TimeSampling::uniform},
                            {.tolerance = kExact});
    check_against_reference(DrawTimes{B, Objective::flow, TimeSampling::logit_normal, 3});
    for (const float p : {0.0f, 0.1f, 1.0f}) {
      check_against_reference(DropLabels{B, 10, p, 3}, {.tolerance = kExact});
    }
    check_against_reference(FillTime{B, 0}, {.tolerance = kExact});
    check_against_reference(FillTime{B, 1}, {.tolerance = kExact});
  }
}

TEST(SampleOps, AgreeWithTheReference) {
  for (const DType type : {DType::u8, DType::f16, DType::f32}) {
    const double tolerance = type == DType::u8 ? kRounding : kExact;
    for (const int64_t S : {1, 2, 7, 32}) {
      check_against_reference(ReadSamples{3, 2, S, type}, {.tolerance = tolerance});
      check_against_reference(ReadSamples{9, 3, S, type, true, 20, 5}, {.tolerance = tolerance});
    }
  }
}

// Which samples are mirrored is a matter of their place in the run, however they are taken.
TEST(SampleOps, HalfOfThemAreMirroredByTheirPlace) {
  constexpr int64_t kBatch = 1000;
  Scalars s = test_scalars();
  const auto mirrored = [&](int64_t first, int64_t count) {
    Column stored;
    for (int64_t b = 0; b < count; ++b) stored.insert(stored.end(), {0.0, 1.0, 0.0, 1.0});
    OpValues<double> v{{stored}, {Column(4 * count)}, {}};
    const ReadSamples op{count, 1, 2, DType::f32, true, kBatch, first};
    const Column x = run_on_device(op, v, s, std::byte{0}).writes[0];
    std::vector<bool> found;
    for (int64_t b = 0; b < count; ++b) found.push_back(x[4 * b] == 1);
    return found;
  };
  const std::vector<bool> all = mirrored(0, kBatch), part = mirrored(300, 50);
  EXPECT_NEAR(std::count(all.begin(), all.end(), true), kBatch / 2, 70);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 300));
  for (int64_t b = 0; b < kBatch; ++b) {
    ASSERT_EQ(all[b], is_mirrored(s.seed, s.step * kBatch + s.first_sample + b)) << b;
  }
}

TEST(NoiseOps, DiffusionAgreesWithTheReference) {
  for (const int64_t n : kCounts) {
    for (const int64_t B : {1, 5, 33}) {
      check_against_reference(Diffuse{B, n, Objective::ddpm});
      check_against_reference(Diffuse{B, n, Objective::flow});
    }
  }
}

// A step past 32 bits keys as its low 32 bits do.
TEST(NoiseOps, LongStepsAgreeWithTheReference) {
  Check check;
  check.scalars.step = (int64_t{5} << 32) + 7;
  check_against_reference(FillNormal{2, 17, Stream::noise}, check);
}

// Rounding the largest random number to fp32 must not make it 1.
TEST(NoiseOps, FlowTimesStayStrictlyInside) {
  for (const int64_t step : {kStepOfLargestTime, kStepOfSmallestTime}) {
    Scalars s;
    s.step = step;
    const DrawTimes op{1, Objective::flow, TimeSampling::uniform};
    OpValues<double> v{{}, {Column(1)}, {}};
    const double t = run_on_device(op, v, s, std::byte{0}).writes[0][0];
    EXPECT_GT(t, 0);
    EXPECT_LT(t, 1);
  }
}

// What a rank draws for its part of the batch is what one process draws for those samples.
TEST(NoiseOps, ASampleHasItsNumbersWhateverTheBatch) {
  const Scalars s = test_scalars();
  const auto draw = [&](const OpParams& op) {
    OpValues<double> v{{}, {unset_column(signature(op).writes[0])}, {}};
    run_reference(op, v.refs(s));
    return v.writes[0];
  };
  const Column whole_batch = draw(FillNormal{4, 10, Stream::noise});
  const Column part = draw(FillNormal{2, 10, Stream::noise, 2});
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole_batch.begin() + 20));
  EXPECT_NE(draw(FillNormal{1, 10, Stream::sampler_noise}), draw(FillNormal{1, 10, Stream::noise}));
}

TEST(NoiseOps, TimesAndDropsHaveTheirDistribution) {
  const Scalars s = test_scalars();
  const int64_t B = 20000;
  OpValues<double> v{{}, {Column(B)}, {}};
  run_reference(DrawTimes{B, Objective::ddpm, TimeSampling::uniform}, v.refs(s));
  double mean = 0;
  for (const double t : v.writes[0]) {
    ASSERT_TRUE(t >= 0 && t < kDiffusionSteps && t == std::floor(t));
    mean += t / B;
  }
  EXPECT_NEAR(mean, 499.5, 8);  // four standard errors
  EXPECT_EQ(*std::min_element(v.writes[0].begin(), v.writes[0].end()), 0);
  EXPECT_EQ(*std::max_element(v.writes[0].begin(), v.writes[0].end()), 999);

  v.reads = {Column(B, 3.0)};
  run_reference(DropLabels{B, 10, 0.1f}, v.refs(s));
  EXPECT_NEAR(std::count(v.writes[0].begin(), v.writes[0].end(), 10.0) / double(B), 0.1, 0.0085);
}

}  // namespace
}  // namespace ebb
