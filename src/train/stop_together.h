// Whether a run is to stop, as all of its ranks decide it together: they do so after the same step.
#pragma once

#include <ebb/step_record.h>

#include <functional>
#include <vector>

#include "comm/agreement.h"
#include "train/sink.h"

namespace ebb {

// All must outlive it. Over ranks every call but that of apart() is collective.
class StopTogether {
 public:
  // Without peers it is one process that decides.
  StopTogether(const RunControl& control, Peers* peers) : control_(control), peers_(peers) {}

  // Whether anybody has asked to stop. All ranks ask each other, unless they have just done so.
  // What one of them has failed with by itself, all fail with here.
  bool ask();

  // The same after a step, with where its time has gone on this rank: the first gets that of all of
  // them in `ranks`. It takes no message of its own.
  void ask_after_step(const RankSeconds& own, std::vector<RankSeconds>& ranks);

  // What comes next takes a while: somebody may ask to stop meanwhile.
  void pass_time() { just_asked_ = false; }

  // Runs what is this rank's alone. Where there are others, a failure waits until all meet.
  void apart(const std::function<void()>& part);

 private:
  uint64_t flags() const;
  void decide(uint64_t flags_of_all);

  const RunControl& control_;
  Peers* const peers_;
  Attempt apart_;
  bool stopping_ = false, just_asked_ = false;
};

}  // namespace ebb
