// The bytes of the whole process: the arena, and what lies outside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace ebb {

// Code, libraries, thread stacks, compiled kernels, opened data: measured now, by running the
// plans' linear layers once and asking the system. Call it when everything but the arena is there.
int64_t measure_outside_bytes(const PlanSet& plans);

// What `plan` names must be enough for `train`, which measures a little more or less: a part of the
// reserve that a run may start without.
inline constexpr int64_t kMeasuringSlack = 2 << 20;

// 80 % of what is available.
int64_t default_budget_bytes();

// The largest safetensors header that may be read: reading one takes about five times its bytes.
int64_t header_limit(int64_t budget_bytes);

// Fails with Exit::budget when arena + outside is over the budget. `what` names the run: "8 samples
// of DiT-S/2".
void check_budget(int64_t arena_bytes, int64_t outside_bytes, int64_t budget_bytes,
                  const std::string& what, const std::string& hint);

}  // namespace ebb
