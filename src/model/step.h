// One training step as a program: noise, forward, loss, backward, norm, update, average.
#pragma once

#include "model/dit.h"

namespace ebb {

struct StepSpec {
  int64_t batch = 1;
  bool given_noise = false;  // the host gives noise and times, and labels are taken as they are
  bool update = true;        // without it the gradients are outputs, for `ebb grad`
  bool ema = true;
  float label_drop = 0.1f;
  TimeSampling time_sampling = TimeSampling::uniform;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  float clip = 0;            // 0: never
  int64_t loader_bytes = 0;  // resident memory that the loader decodes into
};

// Names that the host uses.
inline constexpr const char* kLoaderMemory = "loader.memory";  // (loader_bytes) u8
inline constexpr const char* kBatchX = "batch.x";              // (B, C, S, S) clean input
inline constexpr const char* kBatchY = "batch.y";              // (B) i32
inline constexpr const char* kBatchNoise = "batch.noise";      // (B, C, S, S)
inline constexpr const char* kBatchTime = "batch.t";           // (B)
inline constexpr const char* kLoss = "loss";                   // (1)
inline constexpr const char* kNorms = "norms";          // (trained tensors) f64: squared norms
inline constexpr const char* kClip = "clip";            // (2): gradient norm, factor
inline constexpr const char* kOutput = "final.output";  // (B, C_out, S, S)

Program write_step(const DitConfig& config, const StepSpec& spec, const Device& device);

}  // namespace ebb
