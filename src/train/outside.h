// What a process takes outside its arena.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "plan/plan.h"

namespace ebb {

// Compiles the kernels of these plans, and gives back those of any other.
void prepare_kernels(const PlanSet& plans);

// Code, libraries, thread stacks, compiled kernels, opened data: measured now, by running the
// plans' linear layers once and asking the system, and taken as first_measured() says. Call it when
// everything but the arena is there. A kind of process is told by its plans and the bytes of data
// that it holds open.
int64_t outside_bytes(const PlanSet& plans, int64_t data_bytes);

// Two equal processes differ by some pages, which must not decide between two plans: the file keeps
// the first measurement of each kind of process, and later ones that differ by at most
// kMeasuringNoise are taken for it. A file that cannot be read or written is a first measurement.
inline constexpr int64_t kMeasuringNoise = 2 << 20;
int64_t first_measured(const std::filesystem::path& file, const std::string& kind,
                       int64_t measured_bytes);

}  // namespace ebb
