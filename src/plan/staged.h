// Ways to carry out a step whose ranks have not all of the model: where the blocks are cut into
// stages, how large micro-batches are, and what each stage computes again.
#pragma once

#include <vector>

#include "plan/search.h"

namespace ebb {

// Those that fit so many bytes of every rank's arena, fastest first: each stage keeps as much as it
// can. Of none or fewer bytes: all, what takes least first. Fails with Exit::usage where there are
// more stages than blocks, or more parts of a block than heads.
std::vector<Candidate> staged_candidates(const DitConfig& config, const StepSpec& spec,
                                         const Decisions& decisions, const Machine& machine,
                                         int64_t arena_bytes);

// The first block of every stage but the first, so that the heaviest stage weighs as little as can
// be. `ends`: what the first and the last have besides their blocks.
struct StageEnds {
  double first = 0, last = 0;
};
std::vector<int64_t> balanced_cuts(const std::vector<double>& blocks, const StageEnds& ends,
                                   int stages);

}  // namespace ebb
