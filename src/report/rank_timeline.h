// A step over several ranks, as a picture: one row a rank.
#pragma once

#include <string>
#include <vector>

#include "plan/planned_run.h"
#include "plan/rank_time.h"

namespace ebb {

struct TimelineText {
  std::string title, below_it;
  std::vector<std::string> rows;  // a name for each rank
};

// An SVG of times that were found with their timeline. The upper part of a row is what the rank
// does, the line below it whether bytes of its messages move. What is too short to be seen counts
// towards what is beside it.
std::string rank_timeline_svg(const RankTimes& times, const TimelineText& text);

// The first step of a planned run, which all ranks begin together; of a run in one process too.
std::string plan_timeline_svg(const std::string& model, const DitConfig& config,
                              const PlannedRun& planned, const Machine& machine);

}  // namespace ebb
