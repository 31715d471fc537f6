// How long a step over several ranks takes: the programs of all ranks, played side by side. Pure,
// and the same on every machine: no clock is read.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/link.h"
#include "plan/rank_script.h"

namespace ebb {

struct RankTime {
  double seconds = 0;    // until its script is over, all steps
  double computing = 0;  // of these; what lanes take longer than the ops counts
  double waiting = 0;    // for other ranks
  int64_t sent_bytes = 0, received_bytes = 0;
};

struct RankInterval {
  enum class Kind : uint8_t { computing, waiting, sending, receiving };
  double begin = 0, end = 0;
  int32_t rank = 0;
  int32_t message = -1;  // of the rank's script, that is waited for or on its way
  Kind kind = Kind::computing;
  Work work = Work::forward;  // of computing, where the script is cut by it
};

struct RankTimes {
  std::vector<RankTime> ranks;
  // When the last rank has ended each step. The second begins where the first has left each rank,
  // so that the difference of two is what a step in a long run takes.
  std::vector<double> step_ends;
  int64_t events = 0;  // what finding it out took
  std::vector<RankInterval> timeline;

  double seconds() const { return step_ends.back(); }
};

struct RankTimeOptions {
  int steps = 1;
  bool timeline = false;
};

// Rank i plays the i-th script.
// - Messages of one (from, to, channel) are matched in the order in which each side begins them, as
//   plan/rank_check.h does, and travel in that order, one after the other.
// - One starts to move when both sides have begun it and those before it have left, and is over,
// for
//   both sides, a latency after its last byte has left.
// - Ports are shared fairly between what moves (plan/fair_ports.h).
// - Computing and moving bytes do not slow each other down.
// A Bug names ranks that wait for each other, and messages whose sides differ in size.
RankTimes simulate(const std::vector<RankScript>& scripts, const Link& link,
                   const RankTimeOptions& options = {});

// What a step takes in a long run: the second of two.
double step_seconds(const std::vector<RankScript>& scripts, const Link& link);

}  // namespace ebb
