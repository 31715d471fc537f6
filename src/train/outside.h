// What a process takes outside its arena.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace ebb {

// Code, libraries, thread stacks, opened data: measured now, by asking the system, and taken as
// first_measured() says. Call it when everything but the arena is there. A kind of process is told
// by its machine and the bytes of data that it holds open.
int64_t outside_bytes(int64_t data_bytes);

// Two equal processes differ by some pages, which must not decide between two plans: the file keeps
// the first measurement of each kind of process, and later ones that differ by at most
// kMeasuringNoise are taken for it. A file that cannot be read or written is a first measurement.
inline constexpr int64_t kMeasuringNoise = 2 << 20;
int64_t first_measured(const std::filesystem::path& file, const std::string& kind,
                       int64_t measured_bytes);

}  // namespace ebb
