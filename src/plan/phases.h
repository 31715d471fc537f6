// A run whose gradients are coded otherwise while it warms up: a plan for each way, all of them
// made before it starts.
#pragma once

#include <functional>

#include "plan/planned_run.h"

namespace ebb {

// `plan_one` plans a run that has one code from its beginning to its end. What the phases must have
// alike - how numbers are stored, the size of micro-batches - is chosen where it is needed most.
PlannedRun plan_phases(const RunSpec& spec,
                       const std::function<PlannedRun(const RunSpec& one)>& plan_one);

// The least that holds them all.
int64_t floor_of_phases(const RunSpec& spec,
                        const std::function<int64_t(const RunSpec& one)>& floor_of_one);

}  // namespace ebb
