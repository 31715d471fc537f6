// One op by itself, as it would run in a step: for the calibration and the kernel benchmarks.
#pragma once

#include "kernels/cpu/pages.h"
#include "program/op.h"
#include "program/signature.h"

namespace ebb::cpu {

// Reads more memory with every thread than its own caches hold.
class Evictor {
 public:
  void sweep() const;

 private:
  Pages pages_{int64_t{6} << 20, Pages::Size::huge};
};

class Trial {
 public:
  explicit Trial(const OpParams& params);

  // Of all operands and the scratch.
  int64_t bytes() const { return bytes_ + whole_lines(scratch_bytes_); }

  // Lays the operands out in `memory` and runs the op once: the seconds of that. As in a step,
  // weights, gradients and moments have left the caches since they were last used, while
  // activations come from the op before.
  double run(std::byte* memory, const Evictor& evictor) const;

 private:
  bool is_state(const Arg& arg) const;

  OpParams params_;
  Signature signature_;
  int64_t bytes_ = 0;
  int64_t scratch_bytes_ = 0;
};

}  // namespace ebb::cpu
