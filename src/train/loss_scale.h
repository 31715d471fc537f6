// The factor that keeps small gradients inside fp16's range: a power of two, so that it comes off
// again exactly.
#pragma once

#include <cstdint>

namespace ebb {

class LossScale {
 public:
  static constexpr double kStart = 65536;
  static constexpr int64_t kCleanSteps = 2000;

  // Without fp16 it is 1 and stays so.
  explicit LossScale(bool used) : scale_(used ? kStart : 0) {}
  // Goes on with a checkpoint's; one without a scale starts as usual.
  LossScale(bool used, double saved, int64_t clean) : LossScale(used) {
    if (!used || saved == 0) return;
    scale_ = saved;
    clean_ = clean;
  }

  bool used() const { return scale_ != 0; }
  float factor() const { return used() ? static_cast<float>(scale_) : 1.0f; }
  double saved() const { return scale_; }  // 0: not used
  int64_t clean_steps() const { return clean_; }

  // A gradient that was not finite halves it; kCleanSteps that were double it.
  void after_step(bool finite) {
    if (!used()) return;
    clean_ = finite ? clean_ + 1 : 0;
    if (!finite && scale_ > kLeast) scale_ /= 2;
    if (clean_ == kCleanSteps && scale_ < kMost) {
      scale_ *= 2;
      clean_ = 0;
    }
  }
  // Halving has not helped: the gradient itself is not finite.
  bool exhausted() const { return scale_ <= kLeast; }

 private:
  static constexpr double kLeast = 0x1p-14, kMost = 0x1p80;
  double scale_;
  int64_t clean_ = 0;
};

}  // namespace ebb
