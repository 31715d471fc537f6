// What the ranks of a run come to together.
#pragma once

#include <vector>

#include "plan/planned_run.h"
#include "plan/rank_script.h"

namespace ebb {

// Of each rank's plan only what that needs is kept.
class RankSum {
 public:
  explicit RankSum(int ranks) : bytes_(ranks), steps_(ranks), drawings_(ranks), scripts_(ranks) {}

  void add(int rank, const PlannedRun& made, const Machine& machine);

  // Proves that they come to an end together, and says in `own` when, and what each takes.
  void finish(PlannedRun& own, const Machine& machine);

 private:
  bool fits_ = true;
  std::vector<RankBytes> bytes_;
  std::vector<Program> steps_, drawings_;  // what they exchange, of every rank
  std::vector<RankScript> scripts_;
};

}  // namespace ebb
