// The plan of a whole process: within its budget or naming the floor, and never worse for more.
#include "plan/planned_run.h"

#include <gtest/gtest.h>

#include "random_runs.h"

namespace ebb {
namespace {

constexpr int64_t kAmple = int64_t{1} << 42;

RunSpec run_spec(const DitConfig& config, const StepSpec& step, const Decisions& forced = {}) {
  RunSpec spec;
  spec.name = "test";
  spec.config = config;
  spec.step = step;
  spec.decisions = forced;
  spec.budget_bytes = kAmple;
  return spec;
}

TEST(PlannedRuns, AreWithinTheirBudgetOrNameAFloorAboveIt) {
  const OneThread one_thread;
  const Machine machine = middling_machine();
  Random random(23);
  int fitting = 0, refused = 0;
  for (int i = 0; i < 14; ++i) {
    const RandomRun run = random_run(random, 6, 4);
    SCOPED_TRACE(std::to_string(i) + ": " + run.text());
    RunSpec spec = run_spec(run.config, run.step, run.decisions);
    if (i % 4 == 0) spec.held_bytes = 3 << 20;
    const PlannedRun ample = plan_run_and_floor(spec, machine);
    ASSERT_TRUE(ample.fits);
    ASSERT_LE(ample.floor_bytes, ample.process_bytes());
    for (int k = 0; k < 3; ++k) {
      constexpr int64_t kRoom = 4 << 20;
      spec.budget_bytes = between(ample.floor_bytes - kRoom, ample.process_bytes() + kRoom, random);
      const PlannedRun found = plan_run_and_floor(spec, machine);
      if (found.fits) {
        ++fitting;
        EXPECT_LE(found.process_bytes(), spec.budget_bytes);
        EXPECT_LE(found.floor_bytes, found.process_bytes());
        EXPECT_GE(found.seconds, ample.seconds);
      } else {
        ++refused;
        EXPECT_GT(found.floor_bytes, spec.budget_bytes);
        EXPECT_EQ(found.floor_bytes, found.process_bytes());
      }
      for (const Plan& plan : found.plans.plans) {
        EXPECT_NO_THROW(validate_plan(plan, found.plans.arena_bytes));
      }
    }
  }
  EXPECT_GT(fitting, 5);
  EXPECT_GT(refused, 5);
}

struct CurveCase {
  const char* name;
  DitConfig config;
  int64_t batch;
  float clip;
  int budgets;  // planning a large model takes most of a second
};

std::vector<CurveCase> curve_cases() {
  DitConfig middle = small_config(Objective::flow);
  middle.width = 64;
  middle.image_size = 16;
  set_blocks(middle, 8, 4);
  DitConfig uneven = middle;
  uneven.blocks = {{4, 200}, {1, 64}, {3, 7}, {2, 256}};
  return {{"S/4", named_config("DiT-S/4"), 8, 0, 4},
          {"S/4 clipped", named_config("DiT-S/4"), 8, 1, 4},
          {"middle", middle, 16, 0, 25},
          {"middle clipped", middle, 16, 1, 25},
          {"uneven clipped", uneven, 40, 1, 12}};
}

// The figures of a plan.
struct Point {
  int64_t budget, process_bytes, arena_bytes;
  double seconds;
  bool fits;
};

// Rising budgets from the floor to more than everything can use.
std::vector<Point> budget_curve(const CurveCase& c) {
  StepSpec step = step_spec(c.batch);
  step.clip = c.clip;
  RunSpec spec = run_spec(c.config, step);
  const Machine machine = middling_machine();
  const PlannedRun ample = plan_run_and_floor(spec, machine);
  const int64_t floor = ample.floor_bytes, most = ample.process_bytes();
  std::vector<Point> found;
  for (int i = 0; i < c.budgets; ++i) {
    spec.budget_bytes = floor + (most - floor) * i / (c.budgets - 1);
    const PlannedRun run = plan_run(spec, machine);
    found.push_back(
        {spec.budget_bytes, run.process_bytes(), run.plans.arena_bytes, run.seconds, run.fits});
  }
  return found;
}

TEST(BudgetCurve, ASmallerBudgetNeverUsesMoreMemory) {
  const OneThread one_thread;
  for (const CurveCase& c : curve_cases()) {
    SCOPED_TRACE(c.name);
    const std::vector<Point> found = budget_curve(c);
    for (size_t i = 0; i < found.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_TRUE(found[i].fits);
      EXPECT_LE(found[i].process_bytes, found[i].budget);
      if (i == 0) continue;
      EXPECT_GE(found[i].arena_bytes, found[i - 1].arena_bytes);
      EXPECT_LE(found[i].seconds, found[i - 1].seconds);
    }
    // A curve that is flat would pass all of the above.
    EXPECT_LT(found.front().arena_bytes, found.back().arena_bytes);
    EXPECT_GT(found.front().seconds, found.back().seconds);
  }
}

}  // namespace
}  // namespace ebb
