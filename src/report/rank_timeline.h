// A step over several ranks, as a picture: one row a rank.
#pragma once

#include <string>

#include "plan/rank_time.h"

namespace ebb {

// An SVG of times that were found with their timeline. The upper part of a row is what the rank
// does, the line below it whether bytes of its messages move.
std::string rank_timeline_svg(const RankTimes& times);

}  // namespace ebb
