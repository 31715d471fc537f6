// What a run will take before it is over: hours, and bytes on disk.
#pragma once

#include <optional>

#include "plan/planned_run.h"

namespace ebb {

struct TrainOptions;

struct Outlook {
  int64_t steps = 0;                         // 0: not known
  int64_t save_every = 0, sample_every = 0;  // 0: never
  double step_seconds = 0;
  std::vector<PlannedPhase> phases;  // where steps differ: then they say how long each takes
  double drawing_seconds = 0;        // of all pictures of one time
  int64_t checkpoint_bytes = 0;      // of one
  int64_t checkpoints = 0;  // that are there at once, one being written included; 0: not known
  int64_t offload_bytes = 0;

  // From the start until `step` is done, its pictures included.
  double seconds_at(int64_t step) const;
  std::optional<double> total_seconds() const;
  std::optional<double> first_picture_seconds() const;
  std::optional<double> first_checkpoint_seconds() const;
  std::optional<int64_t> disk_bytes() const;

 private:
  std::optional<double> first(int64_t every) const;
  double stepping_seconds_at(int64_t step) const;  // but for pictures
};

Outlook outlook_of(const TrainOptions& options, const PlannedRun& planned, const Machine& machine);

}  // namespace ebb
