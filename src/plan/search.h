// Finds the fastest way to carry out a step within a number of bytes.
#pragma once

#include <algorithm>
#include <vector>

#include "plan/plan.h"
#include "plan/techniques.h"

namespace ebb {

struct Candidate {
  Choices choices;
  int64_t bytes = 0;  // of the arena, if packing leaves no gap
  double seconds = 0;
  int64_t own_bytes = 0;           // of the plan itself, about: a long one takes more
  int64_t looking_bytes = 0;       // that the search took, of all candidates the same
  std::vector<int64_t> cuts = {};  // of a pipeline: the first block of each stage after the first

  // Planning comes before the run, so that the larger of the two counts.
  int64_t total_bytes() const {
    return std::max(bytes + own_bytes, planning_bytes(own_bytes, choices.offload.any()));
  }
};

// Every combination of what the techniques offer, without a schedule.
std::vector<Choices> every_choice(const SearchCase& c);

// The ways to carry out the step that are worth having, fastest first, each with fewer bytes in all
// than those before it (but for those beyond a lane that holds only so much: of these each has
// fewer than those before it beyond the same lane). The list does not depend on any budget: a
// larger budget can only choose an earlier one. So it is never slower, but where it does without
// reluctantly used techniques: then by kReluctance for each of these at most.
std::vector<Candidate> step_candidates(const DitConfig& config, const StepSpec& spec,
                                       const Decisions& decisions, const Machine& machine);

}  // namespace ebb
