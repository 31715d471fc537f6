#include "report/rank_timeline.h"
namespace ebb {
std::string rank_timeline_svg(const std::vector<RankScript>&, const RankTimes&) { return ""; }
}  // namespace ebb
