// Which layout a run of so many ranks has, where nobody has said.
#pragma once

#include <functional>

#include "plan/planned_run.h"

namespace ebb {

// Of all layouts of as many ranks that the run can have and the user has not ruled out, the one
// that takes the least time a step within the budget: of groups and stages, or where none of these
// fits, of as few parts of blocks as do; where nothing fits, the one whose fullest rank takes
// least. `spec_of`: the run in another place. Every rank comes to the same.
RankPlace fastest_place(const RankPlace& place,
                        const std::function<RunSpec(const RankPlace& place)>& spec_of,
                        const Machine& machine);

}  // namespace ebb
