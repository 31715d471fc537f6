#include "plan/machine.h"

#include <algorithm>

namespace ebb {

LaneKind nominal_disk() {
  LaneKind disk;
  disk.name = "disk";
  disk.memory_bytes = kDiskMemory;
  return disk;
}

ProgramTime::ProgramTime(const Program& program, const Machine& machine)
    : sums_(1 + machine.lanes.size(), std::vector<double>(program.ops.size() + 1)) {
  const std::vector<int64_t> times = program.repeats();
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const OpParams& params = program.ops[i].params;
    for (std::vector<double>& sums : sums_) sums[i + 1] = sums[i];
    const auto often = static_cast<double>(times[i]);
    if (const auto* transfer = std::get_if<Transfer>(&params)) {
      const LaneKind& lane = machine.lanes.at(transfer->lane);
      sums_[1 + transfer->lane][i + 1] += often * lane.seconds(*transfer);
    } else {
      sums_[0][i + 1] += often * machine.costs.seconds(params);
    }
  }
}

double ProgramTime::of(int begin, int end) const {
  double slowest = 0;
  for (const std::vector<double>& sums : sums_)
    slowest = std::max(slowest, sums[end] - sums[begin]);
  return slowest;
}

double predicted_seconds(const Program& program, const Machine& machine) {
  const ProgramTime time(program, machine);
  double seconds = 0;
  int begin = 0;
  for (const int mark : program.marks) {
    seconds += time.of(begin, mark);
    begin = mark;
  }
  return seconds + time.of(begin, static_cast<int>(program.ops.size()));
}

}  // namespace ebb
