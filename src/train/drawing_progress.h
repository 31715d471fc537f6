// How far the drawing of samples is: what has passed tells what is left.
#pragma once

#include <chrono>

#include "sample/sampler.h"
#include "train/status_line.h"

namespace ebb {

class DrawingProgress {
 public:
  // Both must outlive it. `aside`: of a run that goes on, so that the line does not stay when all
  // is drawn, and nobody who only reads is told of what takes a few seconds.
  DrawingProgress(StatusLine& line, int64_t count, const SamplerSpec& spec, bool aside);

  // As Drawer calls it: samples drawn, steps done of the next ones.
  void show(int64_t drawn, int step);

 private:
  StatusLine& line_;
  int64_t count_;
  const SamplerSpec& spec_;
  bool aside_;
  std::chrono::steady_clock::time_point start_;
  Cadence cadence_;
};

}  // namespace ebb
