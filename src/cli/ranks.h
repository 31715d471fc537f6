// A verb as one of several ranks: how it begins together with the others, and how it ends.
#pragma once

#include <ebb/machine.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/settings.h"
#include "comm/peers.h"
#include "model/ranks.h"
#include "plan/planned_run.h"
#include "train/train_options.h"

namespace ebb {

using OverRanks = int (*)(Settings, Peers&);

// To be called where a launcher started several processes. Null: the verb is one process's, which
// is refused. What all ranks fail with is said by rank 0; what one fails with by that one, and the
// others are told.
int run_over_ranks(const std::string& verb, OverRanks over_ranks,
                   const std::vector<std::string>& args);

// Who this is, by --ranks. Without peers it has to be alone, or `plan`, which asks for no ranks to
// be there.
RankPlace resolve_place(const Settings& settings, const Peers* peers);

// The same of a verb whose ranks all do alike: their number alone.
void check_equal_ranks(const Settings& settings, const Peers* peers);

// Refuses what does not go with parts of blocks, if the ranks of a place have them.
void check_parts(const Settings& settings, const RankPlace& place);

// Whether the planner is to choose the layout: then resolve_place() has the number of ranks alone.
bool layout_is_open(const Settings& settings, const RankPlace& place);

// How gradients are summed there, by --sum: the leaves of a tree, or 0.
int resolve_leaves(const Settings& settings, const RankPlace& place);

// Collective: fail where ranks were not started alike, which then do not add up; and where they do
// not plan the same.
void compare_ranks(Peers& peers, const Machine& machine, const std::string& settings);
void compare_plans(Peers& peers, const PlannedRun& planned);

// Collective: the machine that rank 0 measures, so that all plan alike.
MeasuredMachine resolve_machine_together(const Settings& settings, Peers& peers);

// Collective: the same machine with the link that its ranks measure between them, unless --link
// says it. Rank 0 tells `say` in a line.
MeasuredMachine with_link_between(const MeasuredMachine& machine, const Settings& settings,
                                  Peers& peers,
                                  const std::function<void(const std::string& line)>& say);

// What one rank of this host may take: --memory, or its part of what all processes may.
int64_t resolve_budget_of_rank(const Settings& settings, const MeasuredMachine& machine);

// The signal that stopped this process, or another rank. Over ranks it is collective.
int agreed_signal(Peers* peers);

}  // namespace ebb
