// The fastest way through the blocks for every amount of memory.
#pragma once

#include <vector>

#include "plan/profile.h"

namespace ebb {

// Schedules from "keep everything" to the least that any can hold, by dynamic programming over
// memory and the number of blocks: each block either keeps one of the profile's sets, or is gone
// through again from an earlier input. None is twice in the list.
std::vector<Schedule> schedules(const Profile& profile, int64_t depth);

}  // namespace ebb
