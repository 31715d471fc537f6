// Moves buffers of a program out of the device's memory, beyond a lane.
#pragma once

#include <vector>

#include "program/program.h"

namespace ebb {

// Memory that a lane's transfers go through, resident.
std::string lane_memory(Home lane);

// The same program with each buffer in its home, by id; `memory_bytes` is what the transfers of
// each lane go through. Each visit to one that is away - its ops in one stage, or in stages that
// follow each other - works on a copy in memory. The copy is fetched about a stage ahead of the
// visit, if the visit needs what was there, and stored while the next stage runs, if the visit
// changed it and somebody will want it. In a loop that goes through several stages the transfers
// are part of the loop; around a loop within one stage they stand outside. Results do not change.
Program offloaded(Program program, const std::vector<Home>& homes,
                  const std::vector<int64_t>& memory_bytes);

}  // namespace ebb
