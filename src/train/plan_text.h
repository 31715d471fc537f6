// A plan in words, for people.
#pragma once

#include <string>

#include "train/planned_run.h"

namespace ebb {

// One line: bytes by purpose, outside, the whole, the budget.
void print_memory(const PlannedRun& planned, int64_t budget_bytes);
// One line: the techniques in use and the predicted time.
void print_techniques(const DitConfig& config, const PlannedRun& planned);
// "block0 .. block11" for blocks that go the same way, one line each.
void print_blocks(const DitConfig& config, const Schedule& schedule);

// The buffers that the peak is made of: "activation of block11.mlp, 61 % of the peak".
struct PeakShare {
  Purpose purpose;
  std::string layer;
  int64_t bytes;
};
std::vector<PeakShare> peak_shares(const Plan& plan);  // largest first

// The first op at which each purpose takes the most bytes, and how many.
struct PurposePeak {
  int op = 0;
  int64_t bytes = 0;
};
std::array<PurposePeak, kPurposes> purpose_peaks(const Plan& plan);

}  // namespace ebb
