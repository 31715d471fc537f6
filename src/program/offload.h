// Moves buffers of a program out of memory, into a file.
#pragma once

#include <vector>

#include "program/program.h"

namespace ebb {

// Memory that transfers go through, resident: files are read and written in whole blocks.
inline constexpr const char* kTransferMemory = "transfer.memory";
inline constexpr int64_t kTransferBytes = 4 << 20;

// The same program with the buffers that `on_disk` names, by id, in a file. Each visit to one of
// them - its ops in one stage, or in stages that follow each other - works on a copy in memory. The
// copy is fetched about a stage ahead of the visit, if the visit needs what was there, and stored
// while the next stage runs, if the visit changed it and somebody will want it. In a loop that goes
// through several stages the transfers are part of the loop; around a loop within one stage they
// stand outside. Results do not change.
Program offloaded(Program program, const std::vector<bool>& on_disk);

}  // namespace ebb
