// Finds the fastest way to carry out a step within a number of bytes.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "model/step.h"
#include "plan/cost.h"
#include "plan/plan.h"

namespace ebb {

// Techniques of which the planner may make use only if it is told so: those that change numbers,
// and those that need something of the user's.
struct Allowed {
  bool bf16 = false, fp16 = false;  // activations and working weights
  bool grad16 = false;              // gradients in bf16
  bool adam8 = false;               // moments of 8 bits
  bool ema16 = false;               // the average in bf16
  bool offload = false;             // changes none: what may be kept in a file
};

// What the user has decided; the rest is the planner's.
struct Forced {
  std::optional<int64_t> micro_batch;
  std::optional<bool> layer_major, release;
  std::optional<KeepSet> keep;  // of every block; rules out going through blocks again
  std::optional<DType> activation, gradient, ema;
  std::optional<Moments> moments;
  Allowed allowed;
};

// Fails with Exit::usage, naming both, when two of them contradict each other.
void check_forced(const Forced& forced, const StepSpec& spec);

struct Candidate {
  Choices choices;
  int64_t bytes = 0;  // of the arena, if packing leaves no gap
  double seconds = 0;
  int64_t own_bytes = 0;  // of the plan itself, about: a long one takes more

  // Planning comes before the run, so that the larger of the two counts.
  int64_t total_bytes() const {
    return std::max(bytes + own_bytes, planning_bytes(own_bytes, choices.offload.any()));
  }
};

// Techniques in use that change numbers or wear a disk. Each counts as if the step took kReluctance
// longer with it, so that it is used only where it is worth that much.
inline constexpr double kReluctance = 0.03;
int techniques_used_reluctantly(const Choices& choices);

// The ways to carry out the step that are worth having, fastest first, each with fewer bytes in all
// than those before it. The list does not depend on any budget: a larger budget can only choose an
// earlier one. So it is never slower, but where it does without reluctantly used techniques: then
// by kReluctance for each of these at most.
std::vector<Candidate> step_candidates(const DitConfig& config, const StepSpec& spec,
                                       const Forced& forced, const CostModel& costs,
                                       const Device& device);

// {name, setting, class} of each technique in use, for people and programs.
struct TechniqueUse {
  std::string name, setting, kind;  // kind: exact or lossy
};
std::vector<TechniqueUse> techniques_in_use(const DitConfig& config, const StepSpec& spec);

}  // namespace ebb
