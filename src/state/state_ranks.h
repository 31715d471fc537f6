// The state of a run that lies with several ranks.
#pragma once

#include <functional>
#include <string>

#include "comm/peers.h"
#include "model/step.h"

namespace ebb {

// The rank that supplies a tensor, as files name it: it has all of it. Where ranks have parts of
// it: the one with the first, and those with the others are the next ones.
using OwnerOf = std::function<int(const std::string& tensor)>;

// By the ranks' place in the step: what rank 0 has is its own to supply, all else its owner's.
OwnerOf owners_of(const DitConfig& config, const StepSpec& step);

// All must outlive it.
struct StateRanks {
  Peers& peers;
  const StepSpec& step;  // of any rank: what all of them keep together
  OwnerOf owner_of;
};

}  // namespace ebb
