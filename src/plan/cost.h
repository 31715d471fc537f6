// What a program costs in time, at rates measured on this machine.
#pragma once

#include "program/program.h"

namespace ebb {

struct Rates {
  double flops = 1e11;  // per second, of matrix products
  double bytes = 1e10;  // per second, to and from memory
};

// The larger of the time for the arithmetic and the time for the bytes, op by op.
double predicted_seconds(const Program& program, const Rates& rates);

}  // namespace ebb
