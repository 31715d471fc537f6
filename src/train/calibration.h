// The cost model of this machine, measured once and kept in a file.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cpu/calibrate.h"
#include "plan/cost.h"

namespace ebb {

// The cache: $EBB_CALIBRATION, else $XDG_CACHE_HOME/ebb/calibration.json, else
// $HOME/.cache/ebb/calibration.json, else none (an empty path).
std::filesystem::path calibration_file();

struct Measurement {
  std::vector<CostPoint> points;  // none: it failed
  bool busy = false;              // other programs had more than a little of the CPUs meanwhile
};

// What is to be measured, and how.
struct Measuring {
  std::string machine;            // that it is of
  std::string first_use;          // why, when there is nothing yet: "first use on this machine"
  int seconds;                    // that it takes, about
  std::vector<CostPoint> wanted;  // times apart
  std::function<Measurement()> measure;
};

// What the file holds for the machine, or measured now and added to the file, which holds several
// machines and thread counts side by side. A file that is damaged is made anew, one that cannot be
// written is a warning: each is a line on stderr and never a failure. What was measured on a busy
// machine is kept for some minutes only.
Calibration machine_calibration(const std::filesystem::path& file, const Measuring& measuring);

// Adds a pace to what the file holds for the machine, if it does; only the last few stay.
void learn_pace(const std::filesystem::path& file, const std::string& machine, double pace);

// Whole steps of `seconds` were foretold as `predicted` with these costs: later predictions are of
// the machine as steps find it. A shared machine is slower or faster for minutes, and a calibration
// is made within seconds. Short steps are left out: they tell of waking threads.
void learn_from_steps(double seconds, double predicted, const CostModel& costs);

// Of this machine with the threads that are set now, and of the disk of a directory, unless it is
// empty. The first time takes some seconds. Fails with Exit::disk if that directory cannot be used.
CostModel machine_costs(const std::filesystem::path& offload = {});

// The same, with the CPUs measured now and not kept: a shared machine changes within seconds.
CostModel machine_costs_now(const std::filesystem::path& offload = {});

}  // namespace ebb
