// From what is to be run to a plan of the whole process: which techniques, where every byte lies,
// how long a step will take. A function of what is to be run and of the machine: it reads no clock,
// no file and no process.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "model/sampler.h"
#include "plan/plan.h"
#include "plan/search.h"

namespace ebb {

struct RunSpec {
  std::string name;  // of the model, for messages
  DitConfig config;
  StepSpec step;                       // its choices are the planner's to make
  std::optional<SamplerSpec> sampler;  // of pictures during training; its batch may become smaller
  Decisions decisions;
  int64_t budget_bytes = 0;
  int64_t data_bytes = 0;   // of the data that is open
  int64_t held_bytes = 0;   // that the host will hold besides: decoders, a picture being encoded
  int64_t apart_bytes = 0;  // that it will hold at times when the arena is not there
};

// What one rank of several takes.
struct RankBytes {
  int64_t process_bytes = 0, arena_bytes = 0;
  int64_t sent_bytes = 0;  // to other ranks, in a step
};

// What a run takes while its gradients are coded in one way.
struct PlannedPhase {
  int64_t begin = 0;                          // steps before it
  std::string code;                           // as --exchange has it
  int64_t process_bytes = 0, sent_bytes = 0;  // of the rank that has most
  double seconds = 0;                         // of a step, predicted
};

struct PlannedRun {
  StepSpec step;                       // with the choices made; of its rank
  std::optional<SamplerSpec> sampler;  // with the batch that fits
  PlanSet plans;                       // the step's, and the sampler's
  double seconds = 0;                  // of a step, predicted
  int64_t outside_bytes = 0;           // of the process, outside the arena
  int64_t floor_bytes = 0;             // of the process: the least that any choice takes; if asked
  bool fits = false;                   // otherwise this is the smallest plan
  std::vector<RankBytes> ranks;        // of all of them, where there are several
  // Where the code changes while the run goes on: all of them; this is the plan of the one that
  // takes most, and it fits if all do.
  std::vector<PlannedPhase> phases;

  const Plan& step_plan() const { return plans.at(kStepProgram); }
  int64_t process_bytes() const { return plans.arena_bytes + outside_bytes; }
  // Of the rank that takes most.
  int64_t most_bytes() const {
    int64_t most = process_bytes();
    for (const RankBytes& rank : ranks) most = std::max(most, rank.process_bytes);
    return most;
  }
  int64_t most_sent_bytes() const {
    int64_t most = 0;
    for (const RankBytes& rank : ranks) most = std::max(most, rank.sent_bytes);
    return most;
  }
};

// The same run, and nothing but what it does after so many steps.
RunSpec after_steps(RunSpec spec, int64_t steps);

// The least that the run takes in any way, of its fullest rank.
int64_t floor_of(const RunSpec& spec, const Machine& machine);

// The fastest plan within the budget, or the smallest there is; the latter says also what that one
// takes. Over ranks the budget is each one's, and the plan that of the rank in the spec's place:
// every rank comes to the same choices.
PlannedRun plan_run(const RunSpec& spec, const Machine& machine);
PlannedRun plan_run_and_floor(const RunSpec& spec, const Machine& machine);
// The fastest one alone: what nothing fits is not looked at further.
std::optional<PlannedRun> plan_run_if_it_fits(const RunSpec& spec, const Machine& machine);

// The same; a budget that cannot hold is Exit::budget, with the floor and up to three ways out.
PlannedRun plan_fitting_run(const RunSpec& spec, const Machine& machine);
[[noreturn]] void refuse_budget(const RunSpec& spec, const PlannedRun& planned,
                                const Machine& machine);

// A change that makes the run smaller: "--batch 8", and what it then takes at least.
struct WayOut {
  std::string how;
  int64_t floor_bytes;
};
// Lossy techniques that are not allowed yet, each by itself and all together; the one that saves
// least first.
std::vector<WayOut> lossy_ways_out(const RunSpec& spec, const Machine& machine);

// Drawing by itself: as many samples at a time as the budget holds.
struct SamplingSpec {
  std::string name;  // of the model, for messages
  DitConfig config;
  SamplerSpec sampler;         // its batch is the most that are drawn together
  bool batch_decided = false;  // they are to be exactly so many
  int64_t samples = 1;         // in all
  int64_t budget_bytes = 0;
  int64_t held_bytes = 0;  // that the host will hold besides: pictures that wait to be written
};

struct PlannedSampling {
  SamplerSpec sampler;  // with the batch that fits
  PlanSet plans;
  int64_t outside_bytes = 0;
};

// A budget that cannot hold is Exit::budget.
PlannedSampling plan_sampling(const SamplingSpec& spec, const Machine& machine);

// The seconds of drawing so many samples.
double drawing_seconds(const DitConfig& config, SamplerSpec sampler, int64_t samples,
                       const Machine& machine);

// The largest batches that the budget holds. Batches are counted up to kMostBatch: one that goes
// through in micro-batches, one after the other, takes no more memory for being larger.
struct LargestBatch {
  int64_t full_speed = 0;  // with nothing computed twice
  int64_t any_speed = 0;
};
LargestBatch largest_batch(const std::function<RunSpec(int64_t batch)>& spec_of,
                           const Machine& machine);

}  // namespace ebb
