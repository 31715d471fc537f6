// What a process takes outside its arena.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace ebb {

// Code, libraries, thread stacks: measured now, by asking the system, when the team of so many
// threads is there but no data and no arena, and with a reserve for what comes later.
int64_t measure_outside(int threads);

// Two equal processes differ by some pages, which must not decide between two plans: the file keeps
// the first measurement of each kind of process, and later ones that differ by no more than this
// are taken for it. A file that cannot be read or written is a first measurement.
int64_t measuring_noise();
int64_t first_measured(const std::filesystem::path& file, const std::string& kind,
                       int64_t measured_bytes);

}  // namespace ebb
