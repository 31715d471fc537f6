// Samplers: forward-only programs, planned like any other. One program is one step of the sampler;
// what differs between steps is in the scalars.
#pragma once

#include <string>
#include <vector>

#include "model/ranks.h"
#include "model/storage.h"
#include "program/device.h"
#include "program/program.h"

namespace ebb {

enum class SamplerKind : uint8_t { ddpm, ddim, euler, heun };
const char* sampler_name(SamplerKind kind);
SamplerKind parse_sampler(const std::string& word);

struct SamplerSpec {
  SamplerKind kind = SamplerKind::euler;
  int steps = 50;
  int64_t batch = 1;
  float guidance = 1;                 // 1: none, and the network sees each sample once
  bool guide_three_channels = false;  // the reference's quirk: only channels 0-2 are guided
  bool clip = false;                  // clamp the predicted clean image to [-1, 1] (ddpm and ddim)
  std::string weights_prefix = "ema.";  // "" for the raw weights
  Storage storage = {};                 // of the weights, and of what is computed with them
  Offload offload = {};                 // of the weights, as the step has it
  RankPlace place = {};                 // whose weights or averages other ranks have too,
  Shard shard = Shard::off;             // or have alone: each layer's are then brought to all

  bool averaged() const { return !weights_prefix.empty(); }
  // Whether every rank has to run it for any to draw.
  bool brings() const {
    return place.pipe > 1 || place.tensor > 1 || shard == Shard::weights ||
           (averaged() && shard != Shard::off);
  }
};

// Fails with Exit::usage when the sampler does not fit the model's objective.
void validate(const SamplerSpec& spec, const DitConfig& config);

inline constexpr const char* kSamplerStart = "sampler start";
inline constexpr const char* kSamplerProgram = "sampler";
inline constexpr const char* kSampleX = "sample.x";        // (B, C, S, S) input of a step
inline constexpr const char* kSampleY = "sample.y";        // (B) i32
inline constexpr const char* kSampleNext = "sample.next";  // (B, C, S, S) output of a step

// What the first step begins with, and one step: kSamplerStart and kSamplerProgram.
std::vector<Program> sampler_programs(const DitConfig& config, const SamplerSpec& spec,
                                      const Device& device);

// The scalars of each step, first to last, without seed and step key.
std::vector<Scalars> sampler_schedule(const SamplerSpec& spec);

}  // namespace ebb
