// Pruning while training: when, and how much of each block is gone by then.
#pragma once

#include <cstdint>
#include <string>

#include "prune/scores.h"

namespace ebb {

// The share of heads and of MLP units of every block that is gone grows from 0 to `share` over n
// events, `every` steps apart: share (1 - (1 - k / n)^3) after the k-th (Zhu and Gupta 2017), much
// at first and little at the end.
struct PruneSchedule {
  double share = 0;
  int64_t begin = 0, end = 0, every = 0;  // steps; the first event is after begin + every
  ScoreBy by = ScoreBy::l2;

  int64_t events() const { return (end - begin) / every; }
  int64_t step_of(int64_t event) const { return begin + event * every; }  // from 1 on
  double share_after(int64_t event) const;
  // The last event at or before a step; 0: none.
  int64_t last_due(int64_t step) const;
  // Whether there is one after which nothing was pruned yet: that was last done at step `pruned`.
  bool due(int64_t step, int64_t pruned) const {
    return last_due(step) > 0 && step_of(last_due(step)) > pruned;
  }
};

// Scores that a checkpoint alone can give.
inline constexpr const char* kEventScoreWords = "l1|l2|fisher|random";

// "pruning: 4 events after steps 30, 40, 50, 60, to a share of 0.5"; `steps`: where the run ends.
std::string schedule_text(const PruneSchedule& schedule, int64_t steps);

}  // namespace ebb
