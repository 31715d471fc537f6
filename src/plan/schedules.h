// The fastest way through the blocks for every amount of memory.
#pragma once

#include <functional>

#include "plan/profile.h"

namespace ebb {

// Visits schedules from the least that any can hold to "keep everything", found by dynamic
// programming over memory and the number of blocks: each block either keeps one of the profile's
// sets, or is gone through again from an earlier input. What it takes is bounded, however deep the
// model: blocks of very deep ones go together in groups. A schedule is the visitor's until it
// returns.
void visit_schedules(const Profile& profile, int64_t depth,
                     const std::function<void(const Schedule&)>& visit);

}  // namespace ebb
