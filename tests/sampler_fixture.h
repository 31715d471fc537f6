// Sampler programs for tests, and a network that the golden trajectories know.
#pragma once

#include <string>
#include <vector>

#include "device_fixture.h"
#include "formats/safetensors.h"
#include "model_fixture.h"
#include "sample/draw.h"

namespace ebb {

inline SamplerSpec sampler_spec(const DitConfig& config) {
  SamplerSpec spec;
  spec.kind = config.objective == Objective::flow ? SamplerKind::heun : SamplerKind::ddpm;
  spec.batch = 2;
  spec.steps = 3;
  spec.guidance = config.classes > 0 ? 2 : 1;
  return spec;
}

inline std::vector<Program> step_and_sampler(const DitConfig& config, int64_t batch) {
  std::vector<Program> programs = {write_step(config, step_spec(batch), cpu_device())};
  for (Program& p : sampler_programs(config, sampler_spec(config), cpu_device())) {
    programs.push_back(std::move(p));
  }
  return programs;
}

// ---- the golden trajectories: tests/golden/diffusion_tables.safetensors

inline Column golden(const std::string& name) {
  static const SafetensorsReader file(EBB_SOURCE_DIR "/tests/golden/diffusion_tables.safetensors");
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) throw Bug("golden file has no " + name);
  Column values(entry->count());
  if (entry->type == TensorType::I64) {
    std::vector<int64_t> whole(values.size());
    file.read_i64(*entry, whole.data(), entry->count());
    values.assign(whole.begin(), whole.end());
  } else {
    file.read_f64(*entry, values.data(), entry->count());
  }
  return values;
}

inline constexpr int kValues = 6;  // of the golden x

// One pixel of six channels: the golden file's six numbers.
inline DitConfig six_channels(Objective objective) {
  DitConfig c = small_config(objective);
  c.image_size = c.patch = 1;
  c.channels = kValues;
  c.classes = 0;
  return c;
}

// The CPU, but the network between Patchify and Unpatchify is the golden file's formula of its
// input and of the time that it was told, and the noise is the golden file's.
class KnownNetwork final : public CpuLike {
 public:
  explicit KnownNetwork(bool diffusion) : diffusion_(diffusion) {}
  void call(const OpParams& params, const Call& call) const override {
    if (std::holds_alternative<TimeEmbed>(params)) time_ = call.read(0)[0];
    if (std::holds_alternative<Patchify>(params)) {
      input_.assign(call.read(0), call.read(0) + kValues);
    }
    if (std::holds_alternative<FillNormal>(params)) {
      for (int i = 0; i < kValues; ++i) {
        call.write(0)[i] = static_cast<float>(noise_[step_ * kValues + i]);
      }
      return;
    }
    if (!std::holds_alternative<Unpatchify>(params)) return cpu::run_op(params, call);
    for (int i = 0; i < kValues; ++i) {
      const float x = input_[i];
      call.write(0)[i] = diffusion_ ? 0.1f * x + time_ / 10000 : 0.5f * x - time_;
      if (diffusion_) call.write(0)[kValues + i] = 0.3f;
    }
  }
  void at_step(int step) const { step_ = step; }

 private:
  const bool diffusion_;
  const Column noise_ = golden("ddpm.z");
  mutable std::vector<float> input_;
  mutable float time_ = 0;
  mutable int step_ = 0;
};

}  // namespace ebb
