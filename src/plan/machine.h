// All that a plan depends on besides what is to be run. Measured once, by the caller (machine/), or
// read from a file that describes another machine.
#pragma once

#include <vector>

#include "plan/cost.h"
#include "plan/link.h"
#include "program/device.h"
#include "program/lane.h"

namespace ebb {

// Of outside_bytes: what a process takes by itself only once it runs (log lines, names, a picture
// being encoded). Planning may have it before.
inline constexpr int64_t kRunningBytes = 3 << 20;

// Between ranks of one host, through its memory: what a plan goes by where nobody has measured.
constexpr Link nominal_link() { return {2e9, 50e-6}; }

// What MPI takes of a process: MPICH 15 MiB with four ranks on a host, some of it shared.
inline constexpr int64_t kPeersBytes = 24 << 20;
// That it still takes of one in which it was there when the process was measured.
inline constexpr int64_t kPeersRunningBytes = 4 << 20;

struct Machine {
  const Device* device = nullptr;  // outlives it
  std::vector<LaneKind> lanes;
  Calibration calibration;            // what was measured of the device's ops,
  CostModel costs;                    // and what they cost by it
  int64_t outside_bytes = 0;          // of a process besides its arena, its plan and its data,
  int64_t peers_bytes = kPeersBytes;  // and of one that has other ranks, besides that
  int64_t available_bytes = 0;        // that a process may take
  Link link = nominal_link();         // between ranks

  Limits limits() const { return device->limits(); }
};

// A disk that nobody has measured: what a plan could do if there were one.
LaneKind nominal_disk();

// The seconds of stretches of a program, each with all times round its loops. Lanes work beside the
// ops of a stage: it takes as long as the slowest of them.
class ProgramTime {
 public:
  ProgramTime(const Program& program, const Machine& machine);
  double of(int begin, int end) const;  // ops of one stage

 private:
  // Before each op: of the ops, then of each lane.
  std::vector<std::vector<double>> sums_;
};

double predicted_seconds(const Program& program, const Machine& machine);

}  // namespace ebb
