// What a checkpoint says of itself: its metadata, the model that it describes, that model's
// parameters, and of a small one the programs of a training step and of a sampler's. The tensors
// themselves are the business of the target `safetensors`.
#include "state/checkpoint.h"

#include "fuzz.h"
#include "model/sampler.h"
#include "model/step.h"
#include "no_device.h"
#include "plan/packing.h"
#include "state/weights_model.h"

namespace ebb {
namespace {

void describe(const DitConfig& config) {
  constexpr int64_t kMostDepth = 8;  // for speed
  if (config.depth() > kMostDepth) return;
  for (const ParamSpec& spec : parameters(config)) {
    if (element_count(spec.shape) < 1) std::abort();
  }
}

// How much memory a program takes at least. Packing it for real takes a search of seconds here.
int64_t bytes_of(const Program& program) {
  const std::vector<Lifetime> lives = lifetimes(program);
  std::vector<LiveBlock> blocks;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.bytes() < 1) std::abort();
    if (!lives[i].empty()) blocks.push_back({Limits{}.aligned(buffer.bytes()), lives[i]});
  }
  return liveness_bound(blocks);
}

void write_programs(const DitConfig& config, int64_t batch) {
  constexpr int64_t kMostDepth = 2;  // for speed
  if (config.depth() > kMostDepth) return;
  check_countable(config, batch);
  const NoDevice device;
  SamplerSpec drawing;
  drawing.kind = config.objective == Objective::flow ? SamplerKind::heun : SamplerKind::ddpm;
  drawing.batch = batch;
  drawing.guidance = config.classes > 0 ? 4 : 1;
  validate(drawing, config);
  StepSpec step;
  step.batch = batch;
  const int64_t weights = 4 * parameter_count(config);
  if (bytes_of(sampler_programs(config, drawing, device)[1]) < weights) std::abort();
  if (bytes_of(write_step(config, step, device)) < weights) std::abort();
}

}  // namespace

void fuzz(std::string_view bytes) {
  static MemoryFile file;
  const SafetensorsReader reader(file.holding(bytes), Exit::disk, 1 << 20);
  may_refuse([&] {
    const DitConfig told = model_of(reader, {.heads = 2, .image_size = 8});
    refuse_unknown_tensors(reader, told);
    describe(told);
    write_programs(told, 1);
  });
  const CheckpointInfo info = read_info(reader);
  if (info.step < 0 || info.samples < 0 || info.updates < 0) std::abort();
  if (!(info.average_start >= 0 && info.average_start <= 1)) std::abort();
  describe(info.config);
  write_programs(info.config, info.step > 0 ? info.samples / info.step : 1);
}

}  // namespace ebb
