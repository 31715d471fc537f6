// What a program costs in time.
#pragma once

#include "program/program.h"

namespace ebb {

class CostModel {
 public:
  double seconds(const OpParams& params) const;
};

double predicted_seconds(const Program& program, const CostModel& costs);

}  // namespace ebb
