// The cost model on measurements that are made up: no clock here.
#include "plan/cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/cpu/calibrate.h"
#include "kernels/cpu/device.h"
#include "model/step.h"
#include "model_fixture.h"

namespace ebb {
namespace {

// Every shape as a machine with an overhead and two rates would take it.
Calibration made_up() {
  Calibration made{"made up", {}};
  for (const OpParams& shape : calibration_shapes()) {
    const double flops = std::visit([](const auto& op) { return op.flops(); }, shape);
    const double seconds = 2e-6 + flops / 2e11 + static_cast<double>(bytes_moved(shape)) / 2e10;
    made.points.push_back(cost_point(shape, seconds));
  }
  return made;
}

TEST(Cost, BytesMovedCountsUpdatesTwice) {
  EXPECT_EQ(bytes_moved(Gelu{100}), 800);
  EXPECT_EQ(bytes_moved(AddTo{100}), 1200);
  EXPECT_EQ(bytes_moved(Linear{2, 3, 5}), 4 * (6 + 15 + 5 + 10));
  EXPECT_EQ(bytes_moved(LinearBackwardParams{2, 3, 5}), 4 * (10 + 6 + 2 * 15 + 2 * 5));
}

template <size_t... kIndex>
std::set<size_t> measured_as_others(std::index_sequence<kIndex...>) {
  std::set<size_t> kinds;
  const auto note = [&]<typename T>(size_t index, const T&) {
    if constexpr (requires(T op) { op.measured_as(); }) kinds.insert(index);
  };
  (note(kIndex, std::variant_alternative_t<kIndex, OpParams>{}), ...);
  return kinds;
}

TEST(Cost, EveryKindIsMeasuredOrCostsWhatAnotherDoes) {
  constexpr size_t kAll = std::variant_size_v<OpParams>;
  std::set<size_t> kinds = measured_as_others(std::make_index_sequence<kAll>());
  for (const OpParams& shape : calibration_shapes()) kinds.insert(shape.index());
  // Not a lane's, a rank's or a feed's, and not what costs what several others do.
  EXPECT_EQ(kinds.size(), kAll - 4);
}

TEST(Cost, WhatConcernsSomeRowsOfATableDoesNotCostTheTable) {
  const AdamW adam{0, 0.9, 0.999, 1e-8, 0, true};
  const LabelRowsUpdate few{1024, 64, 8, adam}, more{2048, 64, 8, adam};
  EXPECT_EQ(bytes_moved(few), bytes_moved(few.measured_as()));
  EXPECT_LT(bytes_moved(more), bytes_moved(few) * 5 / 4);
}

TEST(Cost, WhatCodesGradientsIsCountedByTheBytesThatItMoves) {
  constexpr int64_t n = 9600;
  EXPECT_EQ(bytes_moved(EncodeBf16{n}), 6 * n);
  EXPECT_EQ(bytes_moved(EncodeBf16Feedback{n}), 10 * n);
  EXPECT_EQ(bytes_moved(AddBf16{n, true}), 10 * n);
  EXPECT_EQ(bytes_moved(AddInt8{n}), 9 * n);
  EXPECT_EQ(bytes_moved(AddTopK{n, 3}), 12 * ((3 * (8 + 128) + 11) / 12));  // lines of 64 bytes
  EXPECT_EQ(bytes_moved(AddTopK{n, n}), 16 * n);
  EXPECT_EQ(bytes_moved(SignAdd{n}), 12 * ((8 * n + n / 8 + 11) / 12));
}

TEST(Cost, ProductsThatAreExchangedCostByTheirColumnsToo) {
  Calibration measured;
  for (const int64_t R : {4, 64}) {
    const double ratio = R == 64 ? 3 : 1;
    measured.points.push_back(cost_point(PowerProject{100, 200, R}, 1e-3 * ratio));  // tall
    measured.points.push_back(cost_point(PowerProject{200, 100, R}, 2e-3 * ratio));
  }
  const CostModel costs(measured);
  EXPECT_DOUBLE_EQ(costs.seconds(PowerProject{100, 200, 34}), 2e-3);
  EXPECT_DOUBLE_EQ(costs.seconds(PowerProject{200, 100, 34}), 4e-3);
  EXPECT_DOUBLE_EQ(costs.seconds(PowerProject{400, 100, 4}), 4e-3);
}

TEST(Cost, EveryKindHasACost) {
  for (const CostModel& costs : {CostModel(), CostModel(made_up())}) {
    for (const OpParams& shape : calibration_shapes()) {
      const double seconds = costs.seconds(shape);
      EXPECT_TRUE(std::isfinite(seconds) && seconds > 0) << cost_point(shape, 1).kind;
    }
  }
}

TEST(Cost, MeasuredShapesCostWhatWasMeasured) {
  const Calibration made = made_up();
  const CostModel costs(made);
  const std::vector<OpParams> shapes = calibration_shapes();
  for (size_t i = 0; i < shapes.size(); ++i) {
    const double units = 1 / cost_point(shapes[i], 1).seconds;
    EXPECT_NEAR(costs.seconds(shapes[i]) / (made.points[i].seconds * units), 1, 1e-9)
        << made.points[i].kind;
  }
}

TEST(Cost, BetweenMeasuredShapesIsAStraightLine) {
  Calibration c{"", {}};
  c.points = {{"linear", 10, 100, 1}, {"linear", 20, 100, 3},  {"linear", 10, 200, 2},
              {"linear", 20, 200, 6}, {"attention", 16, 8, 1}, {"attention", 32, 8, 2}};
  c.points.push_back({"linear tall", 10, 100, 9});
  const CostModel costs(c);
  EXPECT_DOUBLE_EQ(costs.seconds(Linear{10, 20, 5}), 9);
  EXPECT_DOUBLE_EQ(costs.seconds(Linear{15, 10, 10}), 2);
  EXPECT_DOUBLE_EQ(costs.seconds(Linear{15, 10, 15}), 3);
  EXPECT_DOUBLE_EQ(costs.seconds(Linear{1, 10, 10}), 1);    // the least that a call takes
  EXPECT_DOUBLE_EQ(costs.seconds(Linear{40, 10, 10}), 6);   // in proportion
  EXPECT_DOUBLE_EQ(costs.seconds(Linear{20, 20, 20}), 12);  // in proportion
  EXPECT_DOUBLE_EQ(costs.seconds(Attention{2, 24, 3, 8}), 1.5 * 2 * 3 * 24);
  EXPECT_DOUBLE_EQ(costs.seconds(Gelu{100}), CostModel().seconds(Gelu{100}));  // not measured
}

TEST(Cost, VariantsHaveMeasurementsOfTheirOwnWhereThereAreAny) {
  const DType b16 = DType::bf16, f16 = DType::f16;
  const auto stored = [](DType type, LinearEnd end = LinearEnd::plain) {
    return Linear{10, 10, 10, end, type, type, type};
  };
  Calibration c{"", {}};
  c.points = {{"linear", 10, 100, 1}, {"linear narrow", 10, 100, 2}, {"gelu", 800, 1, 5}};
  EXPECT_DOUBLE_EQ(CostModel(c).seconds(stored(DType::f32)), 1);
  EXPECT_DOUBLE_EQ(CostModel(c).seconds(stored(b16)), 2);
  EXPECT_DOUBLE_EQ(CostModel(c).seconds(stored(f16)), 1);  // widened, and then fp32's
  EXPECT_DOUBLE_EQ(CostModel(c).seconds(stored(DType::f32, LinearEnd::gelu)), 1 + 5);
  c.points.push_back({"linear ended", 10, 100, 3});
  EXPECT_DOUBLE_EQ(CostModel(c).seconds(stored(DType::f32, LinearEnd::gelu)), 3);
  EXPECT_DOUBLE_EQ(CostModel(c).seconds(stored(b16, LinearEnd::gelu_aside)), 3);
  c.points.push_back({"linear narrow ended", 10, 100, 4});
  EXPECT_DOUBLE_EQ(CostModel(c).seconds(stored(b16, LinearEnd::gelu_aside)), 4);
}

TEST(Cost, ThePaceIsTheMedianAndAFactorOfEverything) {
  Calibration c = made_up();
  const CostModel plain(c);
  EXPECT_EQ(plain.pace(), 1);
  c.paces = {9, 1.25, 0.5};
  const CostModel paced(c);
  EXPECT_EQ(paced.pace(), 1.25);
  for (const OpParams& shape : calibration_shapes()) {
    EXPECT_DOUBLE_EQ(paced.seconds(shape), 1.25 * plain.seconds(shape));
  }
}

TEST(Cost, MoreNeverCostsLess) {
  Calibration disturbed = made_up();
  for (size_t i = 0; i < disturbed.points.size(); i += 3) disturbed.points[i].seconds *= 7;
  for (const CostModel& costs : {CostModel(), CostModel(disturbed)}) {
    double linear = 0, weight = 0, gelu = 0, attention = 0;
    for (int64_t R = 1; R < 20000; R += 1 + R / 7) {
      const auto grows = [](double& last, double seconds) {
        EXPECT_GE(seconds, last);
        last = seconds;
      };
      grows(linear, costs.seconds(Linear{R, 500, 700}));
      grows(weight, costs.seconds(LinearBackwardParams{R, 500, 700}));
      grows(gelu, costs.seconds(Gelu{R * 384}));
      grows(attention, costs.seconds(Attention{2, R, 6, 70}));
    }
  }
}

TEST(Cost, ProgramIsTheSumOfItsOpsAsOftenAsTheyRun) {
  Program program;
  for (const OpParams& params : {OpParams(Gelu{1000}), OpParams(Zero{1000})}) {
    program.ops.push_back({"op", "layer", params, {}, {}, {}, {}});
  }
  program.loops = {{1, 2, 5}};
  const CostModel costs;
  EXPECT_DOUBLE_EQ(predicted_seconds(program, middling_machine()),
                   costs.seconds(Gelu{1000}) + 5 * costs.seconds(Zero{1000}));
}

TEST(Cost, AStageTakesAsLongAsTheSlowestOfOpsAndLanes) {
  using Part = Transfer::Part;
  const auto op = [](const OpParams& params) { return Op{"op", "layer", params, {}, {}, {}, {}}; };
  const Transfer fetch{Part::fetch_begin, 1000};  // 4 s
  const Transfer store{Part::store_begin, 1000};  // 8 s
  Program program;
  program.ops = {op(fetch), op(Gelu{1000}), op({Transfer{Part::fetch_end, 1000}}), op(store)};
  const Machine slow = with_disk(middling_machine(), 1000, 500);
  EXPECT_DOUBLE_EQ(predicted_seconds(program, slow), 12);
  program.marks = {0, 1};
  program.loops = {{3, 4, 5}};
  EXPECT_DOUBLE_EQ(predicted_seconds(program, slow), 4 + 5 * 8);
  const Machine fast = with_disk(middling_machine(), 1e15, 1e15);
  EXPECT_NEAR(predicted_seconds(program, fast), fast.costs.seconds(Gelu{1000}), 1e-9);
}

TEST(Cost, AStepOfTwiceTheBatchTakesLonger) {
  DitConfig config;
  config.width = 32;
  config.head_width = 16;
  set_blocks(config, 2, 2);
  Machine machine = middling_machine();
  machine.costs = CostModel(made_up());
  StepSpec one, two;
  one.batch = 4;
  two.batch = 8;
  EXPECT_GT(predicted_seconds(write_step(config, two, cpu_device()), machine),
            predicted_seconds(write_step(config, one, cpu_device()), machine));
}

}  // namespace
}  // namespace ebb
