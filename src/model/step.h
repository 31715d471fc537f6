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
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;
  float clip = 0;  // 0: never
};

// Names that the host uses.
inline constexpr const char* kBatchX = "batch.x";          // (B, C, S, S) clean input
inline constexpr const char* kBatchY = "batch.y";          // (B) i32
inline constexpr const char* kBatchNoise = "batch.noise";  // (B, C, S, S)
inline constexpr const char* kBatchTime = "batch.t";       // (B)
inline constexpr const char* kLoss = "loss";               // (1)
inline constexpr const char* kNorms = "norms";             // (trained tensors) f64: squared norms
inline constexpr const char* kClip = "clip";               // (2): gradient norm, factor
inline constexpr const char* kOutput = "final.output";     // (B, C_out, S, S)

Program write_step(const DitConfig& config, const StepSpec& spec, const Device& device);

}  // namespace ebb
