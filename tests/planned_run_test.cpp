// The plan of a whole process: within its budget or naming the floor, and never worse for more.
#include "train/planned_run.h"

#include <gtest/gtest.h>

#include "random_runs.h"
#include "train/budget.h"

namespace ebb {
namespace {

constexpr int64_t kAmple = int64_t{1} << 42;

RunSpec run_spec(const DitConfig& config, const StepSpec& step, const Forced& forced = {}) {
  RunSpec spec;
  spec.name = "test";
  spec.config = config;
  spec.step = step;
  spec.forced = forced;
  spec.budget_bytes = kAmple;
  return spec;
}

TEST(PlannedRuns, AreWithinTheirBudgetOrNameAFloorAboveIt) {
  const OneThread one_thread;
  const CostModel costs;
  Random random(23);
  int fitting = 0, refused = 0;
  for (int i = 0; i < 14; ++i) {
    const RandomRun run = random_run(random, 6, 4);
    SCOPED_TRACE(std::to_string(i) + ": " + run.text());
    RunSpec spec = run_spec(run.config, run.step, run.forced);
    if (i % 4 == 0) spec.held_bytes = 3 << 20;
    const PlannedRun ample = plan_run_and_floor(spec, costs);
    ASSERT_TRUE(ample.fits);
    ASSERT_LE(ample.floor_bytes, ample.process_bytes());
    for (int k = 0; k < 3; ++k) {
      // Also a little below the floor, where the slack of measuring decides.
      spec.budget_bytes = between(ample.floor_bytes - 4 * kMeasuringSlack,
                                  ample.process_bytes() + kMeasuringSlack, random);
      const PlannedRun found = plan_run_and_floor(spec, costs);
      if (found.fits) {
        ++fitting;
        EXPECT_LE(found.process_bytes(), spec.budget_bytes);
        EXPECT_LE(found.floor_bytes, found.process_bytes());
        EXPECT_GE(found.seconds, ample.seconds);
      } else {
        ++refused;
        EXPECT_GT(found.floor_bytes, spec.budget_bytes - kMeasuringSlack);
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

// The range of each is many megabytes: how much a process measures of itself differs by some
// hundred kilobytes from one plan to the next.
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

class BudgetCurve : public testing::Test {
 protected:
  struct Point {
    int64_t budget;
    PlannedRun run;
  };
  // Rising budgets from the floor to more than everything can use.
  static std::vector<Point> points(const CurveCase& c) {
    StepSpec step = step_spec(c.batch);
    step.clip = c.clip;
    RunSpec spec = run_spec(c.config, step);
    const CostModel costs;
    // Compiled kernels stay: with those of every candidate there, each plan measures the same.
    for (const Candidate& candidate : step_candidates(c.config, step, {}, costs, cpu_device())) {
      step.choices = candidate.choices;
      for (const Op& op : write_step(c.config, step, cpu_device()).ops) prepare_cpu(op.params);
    }
    spec.budget_bytes = kAmple;
    const PlannedRun ample = plan_run_and_floor(spec, costs);
    const int64_t low = ample.floor_bytes + kMeasuringSlack;
    const int64_t high = ample.process_bytes() + kMeasuringSlack;
    std::vector<Point> found;
    for (int i = 0; i < c.budgets; ++i) {
      spec.budget_bytes = low + (high - low) * i / (c.budgets - 1);
      found.push_back({spec.budget_bytes, plan_run_and_floor(spec, costs)});
    }
    return found;
  }
};

TEST_F(BudgetCurve, ASmallerBudgetNeverUsesMoreMemory) {
  const OneThread one_thread;
  for (const CurveCase& c : curve_cases()) {
    SCOPED_TRACE(c.name);
    const std::vector<Point> found = points(c);
    for (size_t i = 0; i < found.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_TRUE(found[i].run.fits);
      EXPECT_LE(found[i].run.process_bytes(), found[i].budget);
      if (i == 0) continue;
      EXPECT_GE(found[i].run.plans.arena_bytes, found[i - 1].run.plans.arena_bytes);
      EXPECT_LE(found[i].run.seconds, found[i - 1].run.seconds);
    }
    // A curve that is flat would pass all of the above.
    EXPECT_LT(found.front().run.plans.arena_bytes, found.back().run.plans.arena_bytes);
    EXPECT_GT(found.front().run.seconds, found.back().run.seconds);
  }
}

}  // namespace
}  // namespace ebb
