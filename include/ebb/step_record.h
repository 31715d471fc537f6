// What there is to know of one step that was done.
#pragma once

#include <cstdint>

namespace ebb {

struct StepRecord {
  int64_t step;  // from 1 on
  double loss, lr, grad_norm, seconds, images_per_second;
  int64_t arena_peak_bytes, process_peak_bytes;
  double loss_scale = 0;  // fp16: of this step; 0: none
  bool skipped = false;   // the gradient was not finite, and the update was not applied
};

}  // namespace ebb
