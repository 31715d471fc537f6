// Work that is cut over threads however small it is, for as long as this lives.
#pragma once

#include "kernels/cpu/parallel.h"

namespace ebb {

class CutWork {
 public:
  CutWork() { cpu::serial_below = 0; }
  ~CutWork() {
    cpu::serial_below = serial_below_;
    set_team_threads(threads_);
  }
  CutWork(const CutWork&) = delete;
  CutWork& operator=(const CutWork&) = delete;

 private:
  const int64_t serial_below_ = cpu::serial_below;
  const int threads_ = team_threads();
};

}  // namespace ebb
