// What codes for gradients would gain: at this link, and from which link on nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/step.h"
#include "plan/machine.h"

namespace ebb {

struct CodeGain {
  std::string code;        // as --exchange has it
  int64_t sent_bytes = 0;  // in a step, of the rank that sends most
  double seconds = 0;      // of a step, predicted
  // On links of fewer bits per second a step is faster with it; 0: on none, infinity: on all.
  double pays_below = 0;
};

// Of the step as it was planned, over its ranks, with every code that --allow knows, and 1-bit
// Adam. Empty where no two ranks have gradients of the same weights, or add them in a tree.
std::vector<CodeGain> code_gains(const DitConfig& config, const StepSpec& step,
                                 const Machine& machine);

}  // namespace ebb
