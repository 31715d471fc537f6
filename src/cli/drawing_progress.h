// How far the drawing of samples is: what has passed tells what is left.
#pragma once

#include <chrono>

#include "cli/status_line.h"
#include "train/sink.h"

namespace ebb {

class DrawingProgress {
 public:
  // The line must outlive it. `aside`: of a run that goes on, so that the line does not stay when
  // all is drawn, and nobody who only reads is told of what takes a few seconds.
  DrawingProgress(StatusLine& line, bool aside);

  void show(const DrawingRecord& record);

 private:
  StatusLine& line_;
  bool aside_;
  std::chrono::steady_clock::time_point start_;
  Cadence cadence_;
};

}  // namespace ebb
