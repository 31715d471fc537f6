// What there is to know of one step that was done.
#pragma once

#include <cstdint>
#include <vector>

namespace ebb {

// Where the seconds of a step have gone on one rank of several. They add up to its step.
struct RankSeconds {
  double computing = 0;   // what is not one of the others
  double waiting = 0;     // until another rank was there for a message,
  double exchanging = 0;  // and then until its bytes were, beyond what went on meanwhile
};

struct StepRecord {
  int64_t step;  // from 1 on
  double loss, lr, grad_norm, seconds, images_per_second;
  int64_t arena_peak_bytes, process_peak_bytes;
  double loss_scale = 0;  // fp16: of this step; 0: none
  bool skipped = false;   // the gradient was not finite, and the update was not applied
  std::vector<RankSeconds> ranks = {};  // all of them, with the first of several
};

}  // namespace ebb
