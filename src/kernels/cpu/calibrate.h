// How long this machine's kernels take: the source of the cost model.
#pragma once

#include <string>
#include <vector>

#include "program/device.h"

namespace ebb {

// What timings depend on: the CPU, its instruction set, the build's vectors, the threads.
std::string cpu_identity(int threads);

// The shapes that calibrate_cpu() times, in order: every kind of op, linear layers and attention
// over a grid of sizes.
std::vector<OpParams> calibration_shapes();

struct CalibrationEffort {
  size_t clean_samples = 7;  // of each shape are enough
  int least_rounds = 3;      // however long they take
  double seconds = 6.5;      // no other round starts later
};

// Runs every shape again and again, at most 64 MiB at a time, all given back.
std::vector<OpTiming> calibrate_cpu(const CalibrationEffort& effort = {});

}  // namespace ebb
