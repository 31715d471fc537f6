// Where `ebb prune` gets its scores from.
#pragma once

#include "cli/settings.h"
#include "cli/this_machine.h"
#include "prune/data_scores.h"

namespace ebb {

// Fails with Exit::usage where a score lacks its data, or a flag has no use with it.
void check_score_flags(const Settings& settings);

// By the checkpoint's tensors, at random, or from --data. `planned_for`: the machine of the plan,
// where there is one. Scores are made on this one, whatever machine that is.
DataScores make_scores(const Settings& settings, const SafetensorsReader& file,
                       const CheckpointInfo& info, const MeasuredMachine* planned_for);

}  // namespace ebb
