// An event of pruning while training: a checkpoint of the run becomes a smaller one of the same
// step, as `ebb prune` would make it.
#pragma once

#include <filesystem>
#include <string>

#include "comm/peers.h"
#include "prune/surgery.h"
#include "train/prune_schedule.h"

namespace ebb {

// What a file is pruned with: parts of the one that is read and of the one that is written, or what
// scores are made of. The run's own memory is not there meanwhile.
inline constexpr int64_t kEventBytes = 3 * kSurgeryPart;

// The blocks that a schedule's shares are of: those before its first event. What an earlier
// schedule has removed is not this one's.
std::vector<BlockShape> begun_with(const PruneSchedule& schedule, const PruneProgress& progress,
                                   const DitConfig& config);

// Fails with Exit::usage where the schedule's last share is all that blocks have to give.
void check_share(const PruneSchedule& schedule, DitConfig config,
                 const std::vector<BlockShape>& begun, int64_t panel);

// Writes what an event leaves of the checkpoint `from` to `to`, which may be the same path, if one
// is due after the checkpoint's step that has not happened yet and if it leaves less than there is:
// then the answer is true. Of several that are due, the last says how much. Fails as scores and
// surgery do; then `to` is as it was. Of ranks the first one does it, for all.
bool prune_if_due(const std::filesystem::path& from, const std::filesystem::path& to,
                  const PruneSchedule& schedule, int64_t panel, int64_t budget_bytes,
                  Peers* peers = nullptr);

// "4 heads and 96 MLP units go, 2:64*2 stay", for people.
std::string removed_text(const DitConfig& before, const DitConfig& left);

}  // namespace ebb
