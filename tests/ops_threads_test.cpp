// Every op with 1, 2 and 3 threads, at sizes where its work is cut by itself, and with its buffers
// at other places: the same bits.
#include <set>

#include "base/threads.h"
#include "op_case.h"

namespace ebb {
namespace {

constexpr DType kBf16 = DType::bf16;

// At least one of every op whose work is cut: all of 16,384 elements or more, in pieces enough for
// three.
std::vector<OpParams> cut_ops() {
  constexpr int64_t kMany = 20'011;
  const AdamW adam{kMany, 0.9, 0.999, 1e-8, 0.1, true};
  const Lion lion{kMany, 0.9, 0.99, 0.1, true};
  AdamW narrow = adam;
  narrow.g = narrow.average = kBf16;
  narrow.split = true;
  narrow.moments = Moments::coded;
  AdamW frozen = adam;
  frozen.frozen = true;
  return {ReadSamples{7, 3, 40, DType::u8, true, 7},
          FillNormal{5, 1031, Stream::noise},
          Diffuse{5, 4099, Objective::ddpm},
          Diffuse{5, 4099, Objective::flow},
          Patchify{5, 3, 40, 4},
          Unpatchify{5, 3, 40, 4},
          UnpatchifyBackward{5, 3, 40, 4},
          AddPositions{5, 70, 50},
          AddPositions{5, 70, 50, kBf16},
          Linear{70, 130, 200, LinearEnd::gelu_aside},
          Linear{70, 130, 200, LinearEnd::plain, kBf16, kBf16, kBf16},
          LinearBackwardInput{70, 130, 200, true},
          LinearBackwardInput{70, 130, 200, false, kBf16, kBf16, kBf16},
          LinearBackwardParams{300, 130, 200},
          LinearBackwardParams{300, 130, 200, true, kBf16, kBf16, kBf16},
          Linear{70, 130, 200, LinearEnd::plain, DType::f32, DType::f32, DType::f32, 9000},
          LinearBackwardInput{70, 130, 200, true, DType::f32, DType::f32, DType::f32, 9000},
          LinearBackwardParams{300, 130, 200, false, DType::f32, DType::f32, DType::f32, 9000},
          Silu{kMany},
          SiluBackward{kMany},
          Gelu{kMany},
          Gelu{kMany, kBf16},
          Add{kMany},
          AddTo{kMany},
          Repeat{kMany},
          CopyColumns{4000, 60, 90, 31, 7, 50},
          Zero{kMany},
          AdaLN{5, 70, 50, 6, 3, 4},
          AdaLNBackward{5, 70, 50, 6, 3, 4, true},
          AdaLNBackward{5, 70, 50, 6, 3, 4, false, kBf16},
          AddGated{5, 70, 50, 6, 5},
          AddGatedBackward{5, 70, 50, 6, 5},
          QkNorm{5, 70, 3, 20, QkNormKind::layer},
          QkNormBackward{5, 70, 3, 20, QkNormKind::rms},
          Attention{2, 140, 3, 20},
          Attention{1, 400, 1, 20},  // fewer heads than threads: cut over tiles
          AttentionBackward{2, 140, 3, 20},
          AttentionBackward{1, 400, 1, 20},
          DdpmLoss{5, 3, 1200, true, 0.25f},
          DdpmLoss{5, 3, 1200, false, 0.25f},
          FlowLoss{5, 3, 1200, true, 0.25f},
          SquaredNorm{100'003, 0},
          LabelRowsUpdate{4000, 50, 400, {0, 0.9, 0.999, 1e-8, 0.1, true}},
          LabelRowsCatchUp{500, 4000, 50, {0, 0.9, 0.999, 1e-8, 0.1, true}},
          LabelRowsCatchUp{0, 4000, 50, {0, 0.9, 0.999, 1e-8, 0.1, true}},
          adam,
          narrow,
          frozen,
          lion,
          Adafactor{kMany / 100, 101, 0.1, true},
          Adafactor{1, kMany, 0.1, true},
          GaloreAdamW{230, 110, 30, {230 * 30, 0.9, 0.999, 1e-8, 0.1, true}},
          GaloreAdamW{110, 230, 30, {230 * 30, 0.9, 0.999, 1e-8, 0.1, true}},
          StructureSquares{600, 96, 20, 10, false, true, 0.1},
          StructureSquares{300, 200, 100, 2, true, false},
          Shrink{200, 101, 0.1, true},
          Shrink{600, 96, 0.1, true, 0.3, 20, 10, false},
          Shrink{101, 200, 0, false, 0.3, 100, 2, true},
          Guide{5, 6, 700, 3},
          DiffusionStep{5, 3, 700, true, true, true},
          FlowStep{5, 3, 1200, true, true, 0},
          ColumnSums{3, 70, 101},
          EncodeBf16{kMany},
          EncodeBf16Feedback{kMany},
          AddBf16{kMany, true},
          EncodeInt8{kMany, 3},
          AddInt8{kMany},
          EncodeTopK{100'003, 5000, false, 3},
          EncodeTopK{kMany, 5000, true, 3},
          AddTopK{kMany, 5000},
          PowerProject{150, 201, 5},
          Orthonormalize{1001, 30},
          PowerBack{150, 201, 5},
          PowerSum{150, 201, 5},
          SignEncode{100'003},
          SignMomentum{100'003, 0.9, 3},
          SignKeep{100'003},
          SignAdd{100'003}};
}

// Ops that take one number a sample, or add rows in the order of the samples: one thread does them.
std::vector<OpParams> whole_ops() {
  return {DrawTimes{50'000, Objective::flow, TimeSampling::logit_normal},
          DropLabels{50'000, 10, 0.1f},
          FillTime{50'000, 0},
          TimeEmbed{100, Objective::ddpm},
          LabelEmbed{50, 400, 10},
          LabelEmbedBackward{50, 400, 10},
          LabelRowsBackward{50, 400, 10},
          AddLabelRows{400, 10},
          LabelRowsNorm{4000, 50, 400, 0},
          PowerKeep{5000, 20},
          GateCodes{50'000},
          SumLosses{50'000, 0.25f},
          ClipScale{0, 50'000, 1.0f},
          LabelsAndNull{50'000, 10}};
}

class OpThreads : public ::testing::Test {
 protected:
  ~OpThreads() override { set_team_threads(before_); }

  // The op alone and in company; jobs of the team in all.
  static int64_t expect_same_bits(const OpParams& params) {
    Random random(params.index() + 1);
    const OpValues<double> inputs = make_inputs(params, random, 1);
    const auto run = [&](int threads) {
      set_team_threads(threads);
      return run_on_device(params, inputs, test_scalars(), std::byte{0xff});
    };
    const auto alone = run(1);
    const int64_t before = team_jobs();
    for (const int threads : {2, 3}) {
      const int64_t jobs = team_jobs();
      EXPECT_TRUE(same_results(alone, run(threads))) << threads << " threads gave other bits";
      EXPECT_EQ(team_jobs() > jobs, team_jobs() > before) << "cut for some numbers of threads only";
    }
    return team_jobs() - before;
  }

 private:
  const int before_ = team_threads();
};

TEST_F(OpThreads, AnyNumberGivesTheSameBitsOfWorkThatIsCut) {
  for (const OpParams& params : cut_ops()) {
    SCOPED_TRACE(describe(params));
    EXPECT_GT(expect_same_bits(params), 0) << "its work was not cut";
  }
}

TEST_F(OpThreads, WhatIsNotCutAsksNobody) {
  for (const OpParams& params : whole_ops()) {
    SCOPED_TRACE(describe(params));
    EXPECT_EQ(expect_same_bits(params), 0) << "it is cut now: it belongs into the other list";
  }
}

TEST(OpPlaces, NoBitDependsOnWhereBuffersLie) {
  std::vector<OpParams> all = cut_ops();
  for (const OpParams& params : whole_ops()) all.push_back(params);
  for (const OpParams& params : all) {
    SCOPED_TRACE(describe(params));
    Random random(params.index() + 1);
    const OpValues<double> inputs = make_inputs(params, random, 1);
    const auto run = [&](const Places& places) {
      return run_on_device(params, inputs, test_scalars(), std::byte{0xff}, places);
    };
    const auto here = run({});
    for (const Places& there : other_places(params)) EXPECT_TRUE(same_results(here, run(there)));
  }
}

TEST_F(OpThreads, NoOpIsForgotten) {
  std::set<size_t> seen = {OpParams(Transfer{}).index(), OpParams(Exchange{}).index(),
                           OpParams(TakeSamples{}).index()};  // not the device's
  for (const OpParams& params : cut_ops()) seen.insert(params.index());
  for (const OpParams& params : whole_ops()) seen.insert(params.index());
  EXPECT_EQ(seen.size(), std::variant_size_v<OpParams>);
}

}  // namespace
}  // namespace ebb
