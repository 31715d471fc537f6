// What a step says of gradients before they are coded.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/cpu/call.h"

namespace ebb::cpu {

// In the place of every number that is sent of a step that cannot be used.
inline constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

struct Gate {
  bool is_open;  // the step can be used
  float factor;  // of gradients

  explicit Gate(const float* gate) : is_open(std::isfinite(gate[0])), factor(gate[1]) {}
};

}  // namespace ebb::cpu
