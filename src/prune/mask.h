// One's own choice of what survives, as a file.
#pragma once

#include <filesystem>

#include "prune/structure.h"

namespace ebb {

// A safetensors file of zeros and ones, 1 for what stays: `blocks` (one for each block), `heads.I`
// and `mlp.I` (one for each head or MLP unit of block I), as U8, BOOL, I64 or F32. What it does not
// name stays. Blocks are numbered as in the model that is pruned. A block that keeps no head, or no
// MLP unit, stays as half a block; one that keeps neither goes. Fails with Exit::usage, naming the
// tensor, on any other name, size, type or value, and where no block, or no block with a head,
// would be left.
Survivors read_mask(const std::filesystem::path& path, const DitConfig& config);

}  // namespace ebb
