// Channels of what hosts send each other beside the programs, whose own (model/ranks.h) count from
// 0 on: far behind those.
#pragma once

namespace ebb {

enum HostChannel : int {
  kSavedTensors = 100,  // of a checkpoint, to the rank that writes it; and whether it wants them
  kDrawnValues,         // to the rank that makes pictures of them
  kLinkTimes,           // messages that are timed
};

}  // namespace ebb
