// One op by itself, as it would run in a step: for the calibration and the kernel benchmarks.
#pragma once

#include "kernels/cpu/call.h"
#include "kernels/cpu/pages.h"
#include "program/signature.h"

namespace ebb::cpu {

class Trial {
 public:
  explicit Trial(const OpParams& params);

  // Of all operands and the scratch.
  int64_t bytes() const { return bytes_ + whole_lines(scratch_bytes_); }

  // Lays the operands out in `memory` and runs the op once: the seconds of that. As in a step,
  // weights, gradients, moments and what the backward pass reads of the forward pass have left the
  // caches since they were last used, while the rest comes from the op before.
  double run(std::byte* memory) const;

 private:
  bool has_left(const Arg& arg) const;

  OpParams params_;
  Signature signature_;
  int64_t bytes_ = 0;
  int64_t scratch_bytes_ = 0;
};

}  // namespace ebb::cpu
