// The machine as plans know it: measured by asking its device, its disk and the system.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "machine/calibration.h"
#include "plan/machine.h"

namespace ebb {

struct MeasureOptions {
  const Device* device = nullptr;  // that runs will use
  // The same with no more threads than there are CPUs, which only take turns otherwise: its times
  // count. Null: the device itself.
  const Device* timed = nullptr;
  std::filesystem::path offload;  // a directory on a disk; empty: nothing is kept there
  std::filesystem::path cache;    // keeps what takes long to measure; empty: measured anew
  std::function<Measurement(const Device&)> measure = measure_device;
  std::function<void(const std::string& line)> say = {};  // what a person should know
};

// To be called before data is opened. The first time takes some seconds. Fails with Exit::disk if
// the directory cannot be used.
Machine measure_machine(const MeasureOptions& options);

// The same machine with its device timed now, and nothing kept: a shared one changes within
// seconds.
Machine measured_again(const Machine& machine, const MeasureOptions& options);

// Whole steps of `seconds` were foretold as `predicted`: later predictions are of the machine as
// steps find it. A shared machine is slower or faster for minutes, and a calibration is made within
// seconds. Short steps are left out: they tell of waking threads.
void learn_from_steps(double seconds, double predicted, const Machine& machine,
                      const MeasureOptions& options);

}  // namespace ebb
