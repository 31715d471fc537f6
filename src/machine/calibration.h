// The times of a device or a disk, measured once and kept in a file.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "plan/machine.h"

namespace ebb {

// The cache: $EBB_CALIBRATION, else $XDG_CACHE_HOME/ebb/calibration.json, else
// $HOME/.cache/ebb/calibration.json, else none (an empty path).
std::filesystem::path calibration_file();

struct Measurement {
  std::vector<CostPoint> points;  // none: it failed
  bool busy = false;              // other programs had more than a little of the CPUs meanwhile
};

// The device's ops, here and now.
Measurement measure_device(const Device& device);
std::vector<CostPoint> measured_points(const Device& device, const std::vector<double>& seconds);

// What is to be measured, and how.
struct Measuring {
  std::string machine;            // that it is of
  std::string first_use;          // why, when there is nothing yet: "first use on this machine"
  int seconds;                    // that it takes, about
  std::vector<CostPoint> wanted;  // times apart
  std::function<Measurement()> measure;
  std::function<void(const std::string& line)> say;  // for a person; absent: nobody
};

// What the file holds for the machine, or measured now and added to the file, which holds several
// machines and thread counts side by side. A file that is damaged is made anew, one that cannot be
// written is a warning: each is a line said and never a failure. What was measured on a busy
// machine is kept for some minutes only.
Calibration machine_calibration(const std::filesystem::path& file, const Measuring& measuring);

// Adds a pace to what the file holds for the machine, if it does; only the last few stay.
void learn_pace(const std::filesystem::path& file, const std::string& machine, double pace);

}  // namespace ebb
