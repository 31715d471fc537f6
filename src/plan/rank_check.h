// Whether the programs of several ranks can run together. A validator of its own: it trusts nothing
// of who wrote them.
#pragma once

#include <vector>

#include "program/program.h"

namespace ebb {

// Runs all programs side by side, rank i the i-th, as if nothing were buffered: a send is over when
// its receive has begun. What comes to its end so comes to its end under any buffering. A Bug names
// the ranks that wait for each other, messages that differ in size or type at their two ends, and
// what was begun and never waited for. Returns the bytes that each rank sends.
std::vector<int64_t> check_ranks(const std::vector<const Program*>& programs);

}  // namespace ebb
