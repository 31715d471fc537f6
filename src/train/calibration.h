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
  std::vector<OpTiming> timings;  // none: it failed
  bool busy = false;              // other programs had more than a little of the CPUs meanwhile
};

// What the file holds for the machine, or measured now and added to the file, which holds several
// machines and thread counts side by side. A file that is damaged is made anew, one that cannot be
// written is a warning: each is a line on stderr and never a failure. What was measured on a busy
// machine is kept for some minutes only.
Calibration machine_calibration(const std::filesystem::path& file, const std::string& machine,
                                const std::function<Measurement()>& measure);

// Of this machine with the threads that are set now. The first time takes some seconds.
CostModel machine_costs();

}  // namespace ebb
