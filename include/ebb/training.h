// How a model is trained, and in how many bytes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include <ebb/drawing.h>

namespace ebb {

// Names and defaults are those of `ebb train --help`.
struct Training {
  int64_t batch = 256;  // samples of one step
  int64_t memory = 0;   // bytes that the process may take; 0: 80 % of what is available
  double lr = 1e-4;
  int64_t warmup = 0;  // steps over which the rate grows from 0
  double weight_decay = 0;
  std::optional<std::array<double, 2>> betas = {};  // otherwise the optimizer's own
  int64_t galore_refresh = 200;                     // steps between two projectors, with "galore"
  double galore_scale = 0.25;                       // of a projected step
  double l1 = 0, group_lasso = 0;                   // penalties that shrink weights to zero
  double clip = 0;                                  // largest gradient norm; 0 never clips
  double ema = 0.9999;                              // decay of the averaged weights; 0 keeps none
  bool ema_ramp = true;                             // shorter averages at the start
  int64_t ema_every = 1;
  double label_drop = 0.1;                // share of labels dropped, for guidance
  std::string time_sampling = "uniform";  // of flow; or "logit-normal"
  std::optional<bool> flip = {};          // mirror half of the samples; otherwise folders of images
  int64_t loader_threads = 1;
  int64_t seed = 0;  // of everything random
  // Decided by the word of a technique's flag, such as {"recompute", "none"}, {"micro-batch", "4"}
  // or {"optimizer", "lion"}. Those that are not here are the planner's.
  std::map<std::string, std::string> techniques = {};
  std::set<std::string> allow = {};  // what may change numbers: "bf16", "adam8", ...
  Drawing drawing = {};              // what the run will be able to draw
};

}  // namespace ebb
