// When each buffer is alive, derived from who touches it; and which buffers share a place.
#pragma once

#include <vector>

#include "program/program.h"

namespace ebb {

// Half-open, in op indices. Empty for a buffer that nothing touches, and for a view: its root
// lives.
struct Lifetime {
  int begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  bool contains(int op) const { return begin <= op && op < end; }
  bool operator==(const Lifetime&) const = default;
};

// Residents live through the whole program, inputs from its start, outputs to its end. What is
// touched in a loop and outside it lives through the whole loop.
std::vector<Lifetime> lifetimes(const Program& program);

// For each buffer the one whose place it takes, itself where it takes none: an output takes the
// place of an input of its op that dies there, where the op allows it and the sizes are equal.
std::vector<int> shared_places(const Program& program, const std::vector<Lifetime>& lives);

// lives, but a buffer whose place was taken ends where the taker begins: when its bytes count as
// its own.
std::vector<Lifetime> held_lives(const std::vector<Lifetime>& lives, const std::vector<int>& place);

}  // namespace ebb
