// What all ranks know of a step before any of them codes what it keeps the rest of.
#pragma once

#include <vector>

#include "model/messages.h"
#include "model/step.h"

namespace ebb {

// A gradient that waits for the others.
struct MadeGradient {
  const ParamSpec* spec;
  Buf gradient;
};

// For each limit a gate, as GateCodes makes it: whether the step counts on every rank, and the
// factor that clips this rank's own gradients to that limit. 0: never. Emits; runs nothing.
std::vector<Buf> code_gates(Builder& b, Messages& messages, const StepSpec& step,
                            const std::vector<MadeGradient>& made,
                            const std::vector<float>& limits);

}  // namespace ebb
