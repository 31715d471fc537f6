// How many bytes a process may take.
#pragma once

#include <cstdint>

#include "plan/machine.h"

namespace ebb {

// 80 % of what is available.
int64_t default_budget_bytes(const Machine& machine);

// The largest safetensors header that may be read: reading one takes about five times its bytes.
int64_t header_limit(int64_t budget_bytes);

}  // namespace ebb
