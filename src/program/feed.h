// Where a training step takes its samples from while it runs: TakeSamples asks, a loader answers.
#pragma once

#include <cstdint>

#include "program/device.h"

namespace ebb {

class Feed {
 public:
  virtual ~Feed() = default;

  // Writes the samples [first, first + count) of the current batch: their values, as they are
  // stored, one behind the other, and their labels (i32), where `labels` is a place. Each sample of
  // a batch is taken once and in order; with the last one the next batch becomes the current one.
  virtual void take(DeviceMemory& memory, Place values, const Place* labels, int64_t first,
                    int64_t count) = 0;
};

}  // namespace ebb
