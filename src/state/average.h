// The averaged weights: how much each step counts, and how much of the random start is left
// (decision 013).
#pragma once

#include <cstdint>
#include <string>

namespace ebb {

struct AverageRule {
  double decay = 0.9999;  // 0: no average is kept
  bool ramp = true;       // shorter averages at the start: min(decay, n / (n + 9)) at step n
  int64_t every = 1;      // steps between averages, each then of decay^every
};

// What the average keeps of itself at step k (0-based); 1: it is not this step's turn.
double average_decay(const AverageRule& rule, int64_t k);

// A share of the average that is nothing.
inline constexpr double kNoShare = 1e-12;

// The share of the starting weights in the average after `steps` steps, if all were applied.
double start_share(const AverageRule& rule, int64_t steps);

// One line for who draws with the average after `steps` steps while `share` of it is still the
// random start; empty when that does no harm.
std::string average_note(double share, int64_t steps);

// The rule in a run's settings, for checkpoints of versions that did not note the share: without
// the ramp where the text does not say.
AverageRule average_rule_in(const std::string& settings);

}  // namespace ebb
