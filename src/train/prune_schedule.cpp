#include "train/prune_schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace ebb {

double PruneSchedule::share_after(int64_t event) const {
  const double left = 1 - static_cast<double>(event) / static_cast<double>(events());
  return share * (1 - left * left * left);
}

int64_t PruneSchedule::last_due(int64_t step) const {
  return std::clamp<int64_t>((step - begin) / every, 0, events());
}

std::string schedule_text(const PruneSchedule& s, int64_t steps) {
  std::string text = fmt::format(
      "pruning: {} of each block's heads and MLP units go in {} event{}, after steps {} to {}",
      s.share, s.events(), s.events() == 1 ? "" : "s", s.step_of(1), s.step_of(s.events()));
  const int64_t within = s.last_due(steps);
  if (within < s.events()) {
    text += fmt::format("; {} of them before the run ends", within);
  }
  return text;
}

}  // namespace ebb
