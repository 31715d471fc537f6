// What the other ranks see of a rank's program: how long it computes between its messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/machine.h"
#include "program/program.h"

namespace ebb {

// What ops are for. Sums of gradients over ranks and their zeros count as the matrices'.
enum class Work : uint8_t {
  forward,
  backward,  // the gradients that go on to the layer before,
  matrices,  // and those that stay
  update,    // with norms and the average
};

struct RankStep {
  enum class Kind : uint8_t {
    compute,  // for so many seconds
    begin,    // a message, the next one of the script
    wait,     // for a message
    stage,    // what came since the last such step has taken at least so many seconds: lanes did
  };
  double seconds = 0;
  int32_t message = -1;  // that it begins or waits for
  Kind kind = Kind::compute;
  Work work = Work::forward;  // of computing, in a script that is cut by it
};

struct RankMessage {
  std::string name;  // of the op that begins it
  int64_t bytes = 0;
  int32_t peer = 0, channel = 0;
  bool sends = false;
};

// Some hundred steps where a program has some thousand ops: those of 256 ranks fit into memory.
struct RankScript {
  std::vector<RankStep> steps;
  std::vector<RankMessage> messages;  // in the order in which they begin
};

// Loops run their count. Ops take what the machine says, and stages as long as their slowest lane
// (plan/machine.h): without messages the script takes predicted_seconds(). A Bug names what is
// begun twice, waited for and not begun, or begun and not waited for. Computing is cut by messages
// alone; for a picture also where the work changes.
enum class ScriptCut : uint8_t { messages, works };
RankScript script_of(const Program& program, const Machine& machine,
                     ScriptCut cut = ScriptCut::messages);

}  // namespace ebb
