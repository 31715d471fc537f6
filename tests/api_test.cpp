// The library as others use it: machine, model, plan, run.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "api_fixture.h"

namespace ebb {
namespace {

TEST_F(Api, ARunLearnsFromArrays) {
  ebb::Run run(plan());
  double first = 0, last = 0;
  for (int i = 0; i < 150; ++i) {
    const StepRecord record = run.step();
    EXPECT_EQ(record.step, i + 1);
    EXPECT_FALSE(record.skipped);
    if (i < 20) first += record.loss;
    if (i >= 130) last += record.loss;
  }
  EXPECT_LT(last, 0.7 * first);
}

TEST_F(Api, WhatIsDrawnFollowsItsLabel) {
  ebb::Run run(plan());
  train(run, 300);
  const std::vector<int32_t> labels = {0, 1, 0, 1};
  const std::vector<float> drawn = run.draw(labels, 11);
  constexpr int64_t kSide = Pictures::kSize, kPixels = kSide * kSide;
  ASSERT_EQ(std::ssize(drawn), 4 * kPixels);
  for (int64_t i = 0; i < 4; ++i) {
    double left = 0, right = 0;
    for (int64_t p = 0; p < kPixels; ++p) {
      (p % kSide < kSide / 2 ? left : right) += drawn[i * kPixels + p];
    }
    EXPECT_EQ(right > left, labels[i] == 1) << "sample " << i;
  }
}

TEST_F(Api, ALoadedRunGoesOnWithTheBitsOfOneThatNeverStopped) {
  ebb::Run whole(plan());
  train(whole, 7);

  ebb::Run first(plan());
  train(first, 4);
  first.save(folder_.path() / "four.safetensors");
  ebb::Run second(plan());
  train(second, 2);  // whatever it did before
  second.load(folder_.path() / "four.safetensors");
  EXPECT_EQ(second.steps_done(), 4);
  EXPECT_EQ(state_of(first), state_of(second));
  train(second, 7);
  EXPECT_EQ(state_of(whole), state_of(second));
  EXPECT_NE(state_of(first), state_of(second));
}

TEST_F(Api, RunsDoNotDisturbEachOther) {
  Training other = training();
  other.seed = 9;
  ebb::Run one_alone(plan()), two_alone(plan(other));
  train(one_alone, 5);
  train(two_alone, 5);

  ebb::Run one(plan()), two(plan(other));
  for (int i = 0; i < 5; ++i) {
    one.step();
    two.step();
  }
  EXPECT_EQ(state_of(one), state_of(one_alone));
  EXPECT_EQ(state_of(two), state_of(two_alone));
  EXPECT_NE(state_of(one), state_of(two));
}

TEST_F(Api, RunsInTwoThreadsDoNotDisturbEachOther) {
  const TrainingPlan of_two(machine(2), model(), training(), pictures_.data());
  ebb::Run alone(plan());
  train(alone, 6);
  ebb::Run one(of_two), two(of_two);
  std::thread beside([&] { train(one, 6); });
  train(two, 6);
  beside.join();
  EXPECT_EQ(state_of(one), state_of(alone));
  EXPECT_EQ(state_of(two), state_of(alone));
}

TEST_F(Api, ARunOutlivesTheValuesThatItWasMadeOf) {
  std::optional<ebb::Run> run;
  {
    const TrainingPlan made = plan();
    run.emplace(made);
  }
  ebb::Run moved = std::move(*run);
  moved.step();
  EXPECT_EQ(moved.plan().micro_batch(), 8);
}

TEST_F(Api, ABudgetThatCannotHoldIsRefusedWithWhatWouldHelp) {
  Training small = training();
  small.memory = 17 << 20;
  const TrainingPlan refused = plan(small);
  EXPECT_FALSE(refused.fits());
  expect_error(Exit::budget, "needs at least", [&] { ebb::Run run(refused); });
  try {
    refused.check_fits();
  } catch (const Error& e) {
    EXPECT_NE(e.hint().find("would need"), std::string::npos) << e.hint();
  }
}

TEST_F(Api, TheFloorIsTheLeastBudgetThatHolds) {
  const int64_t floor = plan().floor_bytes();
  Training least = training();
  least.memory = floor;
  EXPECT_TRUE(plan(least).fits());
  least.memory = floor - 1;
  EXPECT_FALSE(plan(least).fits());
}

TEST_F(Api, ThePlannedArenaIsTheMeasuredOne) {
  for (const int64_t memory : {int64_t{1} << 30, plan().floor_bytes()}) {
    Training t = training();
    t.memory = memory;
    ebb::Run run(plan(t));
    run.step();
    run.draw(std::vector<int32_t>{0, 1, 1}, 1);
    EXPECT_EQ(run.arena_peak_bytes(), run.plan().arena_bytes());
    EXPECT_LE(run.plan().process_bytes(), memory);
  }
}

TEST_F(Api, ASmallerBudgetChangesNoBit) {
  Training small = training();
  small.memory = plan().floor_bytes();
  ebb::Run tight(plan(small)), ample(plan());
  EXPECT_FALSE(tight.plan().techniques().empty());
  train(tight, 3);
  train(ample, 3);
  EXPECT_EQ(state_of(tight), state_of(ample));
}

TEST_F(Api, TheLedgerAddsUpToTheArena) {
  const TrainingPlan made = plan();
  for (const char* micro_batch : {"1", "2", "3", "8"}) {
    for (const char* recompute : {"none", "all"}) {
      Training t = training();
      t.techniques = {{"micro-batch", micro_batch}, {"recompute", recompute}};
      const TrainingPlan each = plan(t);
      int64_t sum = 0;
      for (const TrainingPlan::Purpose& purpose : each.ledger()) sum += purpose.bytes;
      EXPECT_EQ(sum, each.arena_bytes());
      EXPECT_EQ(each.ledger().back().name, "gap");
    }
  }
  EXPECT_GT(made.parameters(), 0);
  EXPECT_GT(made.step_seconds(), 0);
  const auto json = nlohmann::json::parse(made.json());
  EXPECT_EQ(json["arena_bytes"], made.arena_bytes());
  EXPECT_EQ(json["floor_bytes"], made.floor_bytes());
  EXPECT_NE(made.text().find("fits"), std::string::npos);
}

TEST_F(Api, DrawingIsAFunctionOfTheSeed) {
  ebb::Run run(plan());
  train(run, 3);
  const std::vector<int32_t> labels(20, 1);
  const auto before = state_of(run);
  const auto first = run.draw(labels, 5);
  EXPECT_EQ(run.draw(labels, 5), first);
  EXPECT_NE(run.draw(labels, 6), first);
  EXPECT_EQ(state_of(run), before);
  ebb::Run again(plan());
  train(again, 3);
  EXPECT_EQ(again.draw(labels, 5), first);
}

TEST_F(Api, DrawingCanBeWatchedAndStopped) {
  ebb::Run run(plan());
  int64_t taken = 0, seen = 0;
  DrawingCalls calls;
  calls.take = [&](int64_t, int64_t count, const float*) { taken += count; };
  calls.watch = [&](int64_t, int64_t step) { seen = step; };
  EXPECT_TRUE(run.draw(2, 1, calls));
  EXPECT_EQ(taken, 2);
  EXPECT_EQ(seen, 4);
  calls.stop = [] { return true; };
  EXPECT_FALSE(run.draw(2, 1, calls));
  EXPECT_EQ(taken, 2);
}

TEST_F(Api, EveryTechniqueIsReachedByItsFlag) {
  Training t = training();
  t.techniques = {{"micro-batch", "2"}, {"recompute", "all"}, {"optimizer", "lion"}};
  const TrainingPlan made = plan(t);
  EXPECT_EQ(made.micro_batch(), 2);
  std::string names;
  for (const TrainingPlan::Technique& each : made.techniques()) names += each.name + ",";
  EXPECT_NE(names.find("recompute"), std::string::npos) << names;
  for (const Technique& technique : techniques()) {
    if (!technique.decide) continue;
    Training off = training();
    off.techniques = {{technique.flag, "auto"}};
    EXPECT_TRUE(plan(off).fits()) << technique.flag;
  }
  t.techniques = {{"micro-batches", "2"}};
  expect_error(Exit::usage, "did you mean micro-batch", [&] { plan(t); });
  t.techniques = {{"micro-batch", "9"}};
  expect_error(Exit::usage, "--micro-batch: found 9", [&] { plan(t); });
}

TEST_F(Api, WhatMayChangeNumbersIsUsedOnlyWhereAllowed) {
  Training t = training();
  t.memory = plan().floor_bytes() - (200 << 10);
  EXPECT_FALSE(plan(t).fits());
  t.allow = {"bf16", "adam8", "ema16", "grad16"};
  EXPECT_TRUE(plan(t).fits());
  t.allow = {"bf17"};
  expect_error(Exit::usage, "--allow: found 'bf17'", [&] { plan(t); });
}

TEST_F(Api, ModelsAreNamedOrEvenOrUneven) {
  Model named;
  named.name = "DiT-S/4";
  Training t = training();
  t.memory = int64_t{1} << 40;
  EXPECT_GT(TrainingPlan(machine(), named, t).parameters(), 30'000'000);
  Model uneven = model();
  uneven.depth = 0;
  uneven.blocks = {{1, 20}, {2, 64}, {3, 7}};
  const TrainingPlan made(machine(), uneven, training(), pictures_.data());
  EXPECT_NE(made.parameters(), plan().parameters());
  ebb::Run run(made);
  run.step();
  EXPECT_EQ(run.tensor("blocks.2.mlp.fc1.weight").shape, (std::vector<int64_t>{7, 32}));
  uneven.depth = 2;
  expect_error(Exit::usage, "--depth: found 2, but --shapes has 3 blocks",
               [&] { TrainingPlan(machine(), uneven, training()); });
}

TEST_F(Api, ASavedModelDrawsWhatItsRunDrew) {
  const auto file = folder_.path() / "model.safetensors";
  ebb::Run run(plan());
  train(run, 5);
  run.save(file);
  const std::vector<int32_t> labels = {0, 1, 1, 0, 1};
  const auto expected = run.draw(labels, 5);

  SavedModel model(machine(), file, int64_t{1} << 30);
  EXPECT_EQ(model.steps_done(), 5);
  EXPECT_EQ(model.classes(), 2);
  EXPECT_TRUE(model.pictures());
  expect_error(Exit::usage, "found no plan", [&] { model.draw(labels, 5); });
  // As many together as the run has: the last digits depend on it.
  model.plan(training().drawing, {16, 0, true});
  EXPECT_EQ(model.together(), 16);
  EXPECT_EQ(model.draw(labels, 5), expected);
  model.plan(training().drawing, {5, 0, false});
  const auto fewer = model.draw(labels, 5);
  for (size_t i = 0; i < fewer.size(); ++i) EXPECT_NEAR(fewer[i], expected[i], 1e-4);
  expect_error(Exit::usage, "draw: found label 2 for sample 0, wanted 0 to 1",
               [&] { model.draw(std::vector<int32_t>{2}, 5); });

  SavedModel small(machine(), file, 16 << 20);
  expect_error(Exit::budget, "plan: drawing 5 samples", [&] {
    small.plan(training().drawing, {5, 0, false});
  });
}

}  // namespace
}  // namespace ebb
