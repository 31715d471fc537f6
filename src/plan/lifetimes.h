// When each buffer is alive, derived from who touches it.
#pragma once

#include <vector>

#include "program/program.h"

namespace ebb {

// Half-open, in op indices. Empty for a buffer that nothing touches.
struct Lifetime {
  int begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  bool operator==(const Lifetime&) const = default;
};

// Residents live through the whole program, inputs from its start, outputs to its end.
std::vector<Lifetime> lifetimes(const Program& program);

}  // namespace ebb
