// From what is to be run to a plan of the whole process: which techniques, where every byte lies,
// how long a step will take. `plan`, `train`, `grad`, `bench` and `compare` all begin here.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "model/step.h"
#include "plan/cost.h"
#include "plan/plan.h"
#include "plan/search.h"
#include "sample/sampler.h"

namespace ebb {

struct RunSpec {
  std::string name;  // of the model, for messages
  DitConfig config;
  StepSpec step;                       // its choices are the planner's to make
  std::optional<SamplerSpec> sampler;  // of pictures during training; its batch may become smaller
  Forced forced;
  int64_t budget_bytes = 0;
  int64_t data_bytes = 0;  // of the data that is open
  int64_t held_bytes = 0;  // that the host will hold besides: decoders, a picture being encoded
};

struct PlannedRun {
  StepSpec step;                       // with the choices made
  std::optional<SamplerSpec> sampler;  // with the batch that fits
  PlanSet plans;                       // the step, then the sampler's two programs
  double seconds = 0;                  // of a step, predicted
  int64_t outside_bytes = 0;           // of the process, outside the arena
  int64_t floor_bytes = 0;             // of the process: the least that any choice takes; if asked
  bool fits = false;                   // otherwise this is the smallest plan

  const Plan& step_plan() const { return plans.plans[0]; }
  int64_t process_bytes() const { return plans.arena_bytes + outside_bytes; }
};

// The fastest plan within the budget, or the smallest there is; the latter says also what that one
// takes.
PlannedRun plan_run(const RunSpec& spec, const CostModel& costs);
PlannedRun plan_run_and_floor(const RunSpec& spec, const CostModel& costs);

// The same; a budget that cannot hold is Exit::budget, with the floor and up to three ways out.
PlannedRun plan_fitting_run(const RunSpec& spec, const CostModel& costs);
[[noreturn]] void refuse_budget(const RunSpec& spec, const PlannedRun& planned,
                                const CostModel& costs);

// A change that makes the run smaller: "--batch 8", and what it then takes at least.
struct WayOut {
  std::string how;
  int64_t floor_bytes;
};
// Lossy techniques that are not allowed yet, each by itself and all together; the one that saves
// least first.
std::vector<WayOut> lossy_ways_out(const RunSpec& spec, const CostModel& costs);

// The largest batches that the budget holds.
struct LargestBatch {
  int64_t full_speed = 0;  // with nothing computed twice
  int64_t any_speed = 0;
};
LargestBatch largest_batch(const std::function<RunSpec(int64_t batch)>& spec_of,
                           const CostModel& costs);

}  // namespace ebb
