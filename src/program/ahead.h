// Receives that begin ahead of their need.
#pragma once

#include "program/program.h"

namespace ebb {

// A rank that asks for something only when it needs it waits for all of its way. Here a receive
// that ends where it begins, and those that follow it with no work between, begin as soon as the
// group of them before the last has ended, at most a stage ahead: they are under way while the rank
// computes, and the sender knows of the next before it has sent the last. None takes its bytes
// before the last op that touched them. Messages of one stream keep their order, and to begin a
// receive earlier keeps no rank from anything: programs that came to an end still do.
Program receive_ahead(Program program);

}  // namespace ebb
