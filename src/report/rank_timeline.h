// A step over several ranks, as a picture: one row a rank.
#pragma once

#include <string>

#include "plan/rank_time.h"

namespace ebb {

// An SVG, readable on light and on dark grounds. `times` has the timeline of these scripts.
std::string rank_timeline_svg(const std::vector<RankScript>& scripts, const RankTimes& times);

}  // namespace ebb
