// How many bytes a process may take.
#pragma once

#include <cstdint>
#include <string>

namespace ebb {

// 80 % of what is available.
int64_t default_budget_bytes();

// The largest safetensors header that may be read: reading one takes about five times its bytes.
int64_t header_limit(int64_t budget_bytes);

// Fails with Exit::budget when arena + outside is over the budget. `what` names the run: "8 samples
// of DiT-S/2".
void check_budget(int64_t arena_bytes, int64_t outside_bytes, int64_t budget_bytes,
                  const std::string& what, const std::string& hint);

}  // namespace ebb
