// The link between ranks, as their messages find it.
#pragma once

#include "comm/peers.h"
#include "plan/link.h"

namespace ebb {

// What measuring takes of memory, and gives back: less than a process has for planning.
inline constexpr int64_t kLinkBytes = 1 << 20;

// Collective. Each rank and the next one time short messages and then long ones, every other pair
// at the same time. The longest latency and the slowest rate count, to three digits, the same on
// every rank. Takes some tens of milliseconds; of a link too slow for that, seven messages of 64
// KiB.
Link measure_link(Peers& peers);

}  // namespace ebb
