// What `ebb prune` says of what it does.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "prune/structure.h"

namespace ebb {

// What is kept of a plan: the plan itself of a large model takes as much as all the rest.
struct PlanFigures {
  bool fits = false;
  int64_t process_bytes = 0, floor_bytes = 0;
  double seconds = 0;  // of a step
};

struct PruneReport {
  DitConfig before, after;
  Survivors kept;
  std::vector<std::string> notes;
  // Of training them, where that was planned.
  int64_t batch = 0, budget_bytes = 0;
  std::optional<PlanFigures> plan_before, plan_after;
};

// What goes of every block, in 80 columns.
std::string prune_table_text(const PruneReport& report);
// Parameters, shapes, notes, and the plan.
std::string prune_summary_text(const PruneReport& report);
// One object, for programs. With a plan.
std::string prune_json(const PruneReport& report);

}  // namespace ebb
