// How samples are drawn.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ebb {

struct Drawing {
  std::string sampler = {};  // "ddpm", "ddim", "euler" or "heun"; "": ddim for ddpm, euler for flow
  int64_t steps = 50;
  double guidance = 4;                // how strongly to follow the class; 1 is none
  bool guide_three_channels = false;  // as the reference does, instead of all
  bool clip = true;                   // predicted pixels to [-1, 1], where there are pixels
  bool average = true;                // with the averaged weights, where there are any
  int64_t together = 16;              // at most so many at a time; 0: nothing will be drawn
};

// Called while samples are drawn. What is not set is not called.
struct DrawingCalls {
  // The class of the sample at a place, from 0 on; not asked where there are none. Otherwise 0.
  std::function<int32_t(int64_t place)> label = {};
  // Takes (count, channels, size, size) of the samples from `first` on, in order. The values are
  // gone when it returns.
  std::function<void(int64_t first, int64_t count, const float* values)> take = {};
  // Asked before every call of the network.
  std::function<bool()> stop = {};
  // Told after every call: samples that are drawn, and steps done of the next ones.
  std::function<void(int64_t drawn, int64_t step)> watch = {};
};

}  // namespace ebb
